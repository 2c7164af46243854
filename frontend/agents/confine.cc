#include "frontend/agents/confine.h"

#include <kj/debug.h>
#include <kj/io.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <seccomp.h>
#include <sys/capability.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <memory>
#include <vector>

#include "jailer/seccomp.h"

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

// The allow-list that workloads get: whatever a frontend does is in it, and no
// namespace, mount, module, key, bpf or io_uring call is.
void allowOrdinaryCalls() {
  auto profile = jailer::compileProfile("default");
  std::vector<sock_filter> program(profile.instructions);
  size_t bytes = program.size() * sizeof(sock_filter);
  ssize_t got;
  KJ_SYSCALL(got = pread(profile.bpf, program.data(), bytes, 0));
  KJ_REQUIRE(static_cast<size_t>(got) == bytes, "short read of the profile");
  const sock_fprog filter = {static_cast<unsigned short>(program.size()), program.data()};
  KJ_SYSCALL(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter), "seccomp");
}

// A frontend starts no process and looks into none, so whoever takes it over
// can't either.
void refuseProcesses() {
  std::unique_ptr<void, decltype(&seccomp_release)> filter(seccomp_init(SCMP_ACT_ALLOW),
                                                           &seccomp_release);
  KJ_REQUIRE(filter != nullptr, "seccomp_init failed");
  auto refuse = [&](int call, std::vector<scmp_arg_cmp> when) {
    int result = seccomp_rule_add_exact_array(filter.get(), SCMP_ACT_ERRNO(EPERM), call,
                                              static_cast<unsigned>(when.size()), when.data());
    if (result < 0) KJ_FAIL_SYSCALL("seccomp_rule_add", -result, call);
  };
  for (int call : {SCMP_SYS(execve), SCMP_SYS(execveat), SCMP_SYS(fork), SCMP_SYS(vfork),
                   SCMP_SYS(ptrace), SCMP_SYS(process_vm_readv), SCMP_SYS(process_vm_writev)}) {
    refuse(call, {});
  }
  // Threads share; everything else that clone makes is a process.
  refuse(SCMP_SYS(clone), {SCMP_CMP64(0, SCMP_CMP_MASKED_EQ, CLONE_THREAD, 0)});
  int result = seccomp_load(filter.get());
  if (result < 0) KJ_FAIL_SYSCALL("seccomp_load", -result);
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

  // Last: nothing above has to be allowed by them.
  refuseProcesses();
  allowOrdinaryCalls();

  KJ_REQUIRE(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1, "no_new_privs is off");
  KJ_REQUIRE(prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) == 0, "the process is dumpable");
}

}  // namespace cordon::agents
