#include "frontend/agents/confine.h"

#include <kj/debug.h>
#include <sys/capability.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include <memory>

namespace cordon::agents {
namespace {

using Capabilities = std::unique_ptr<std::remove_pointer_t<cap_t>, decltype(&cap_free)>;

Capabilities own(cap_t caps) {
  KJ_REQUIRE(caps != nullptr, "libcap: out of memory");
  return {caps, &cap_free};
}

bool mayDropBounding() {
  auto caps = own(cap_get_proc());
  cap_flag_value_t value = CAP_CLEAR;
  KJ_SYSCALL(cap_get_flag(caps.get(), CAP_SETPCAP, CAP_EFFECTIVE, &value), "cap_get_flag");
  return value == CAP_SET;
}

void dropCapabilities() {
  // The bounding set first: dropping from it takes a capability. Without one
  // there is nothing that it could let in: no_new_privs is on already.
  if (mayDropBounding()) {
    for (cap_value_t cap = 0; cap <= cap_max_bits(); ++cap) {
      if (cap_get_bound(cap) == 1) {
        KJ_SYSCALL(cap_drop_bound(cap), "dropping from the bounding set", cap);
      }
    }
  }
  KJ_SYSCALL(cap_reset_ambient(), "clearing the ambient set");
  auto none = own(cap_init());
  KJ_SYSCALL(cap_set_proc(none.get()), "dropping the capabilities");
  auto now = own(cap_get_proc());
  KJ_REQUIRE(cap_compare(now.get(), none.get()) == 0, "capabilities are left");
}

}  // namespace

void confine() {
  KJ_SYSCALL(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs");
  dropCapabilities();
  const rlimit noCore{0, 0};
  KJ_SYSCALL(setrlimit(RLIMIT_CORE, &noCore), "RLIMIT_CORE");
  KJ_SYSCALL(prctl(PR_SET_DUMPABLE, 0, 0, 0, 0), "PR_SET_DUMPABLE");

  rlimit files{};
  KJ_SYSCALL(getrlimit(RLIMIT_NOFILE, &files), "RLIMIT_NOFILE");
  files.rlim_cur = files.rlim_max;
  KJ_SYSCALL(setrlimit(RLIMIT_NOFILE, &files), "RLIMIT_NOFILE");

  KJ_REQUIRE(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1, "no_new_privs is off");
  KJ_REQUIRE(prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) == 0, "the process is dumpable");
}

}  // namespace cordon::agents
