#include "frontend/agents/confine.h"

#include <errno.h>
#include <kj/debug.h>
#include <sys/capability.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <memory>

#include "jailer/capabilities.h"
#include "jailer/rlimits.h"
#include "jailer/seccomp.h"
#include "jailer/seccomp_load.h"

namespace cordon::agents {
namespace {

void must(bool done, const char* what) {
  int error = errno;
  if (!done) KJ_FAIL_SYSCALL(what, error);
}

void dropCapabilities() {
  // First: dropping from it takes a capability. Without that one there is nothing
  // that it could let in: no_new_privs is on already.
  must(jailer::keepInBoundingSet(0) || errno == EPERM, "bounding set");
  must(jailer::clearAmbient(), "ambient set");
  must(jailer::setCapabilities({}), "capset");
  using Capabilities = std::unique_ptr<std::remove_pointer_t<cap_t>, decltype(&cap_free)>;
  Capabilities now(cap_get_proc(), &cap_free), none(cap_init(), &cap_free);
  KJ_REQUIRE(now != nullptr && none != nullptr, "libcap: out of memory");
  KJ_REQUIRE(cap_compare(now.get(), none.get()) == 0, "capabilities are left");
}

void raiseFileLimit() {
  rlimit files{};
  KJ_SYSCALL(getrlimit(RLIMIT_NOFILE, &files), "RLIMIT_NOFILE");
  files.rlim_cur = files.rlim_max;
  KJ_SYSCALL(setrlimit(RLIMIT_NOFILE, &files), "RLIMIT_NOFILE");
}

}  // namespace

size_t confine() {
  KJ_SYSCALL(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs");
  dropCapabilities();
  must(jailer::refuseCores(), "RLIMIT_CORE");
  KJ_SYSCALL(prctl(PR_SET_DUMPABLE, 0, 0, 0, 0), "PR_SET_DUMPABLE");
  raiseFileLimit();
  KJ_REQUIRE(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1, "no_new_privs is off");
  KJ_REQUIRE(prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) == 0, "the process is dumpable");

  // Last: nothing above has to be allowed by it.
  auto profile = jailer::compileProfile("frontend", frontendCalls());
  if (int error = jailer::loadFilter(profile.bpf)) KJ_FAIL_SYSCALL("seccomp", error);
  return profile.allowedCalls;
}

}  // namespace cordon::agents
