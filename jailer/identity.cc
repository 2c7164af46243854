#include <fcntl.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "jailer/core_scheduling.h"
#include "jailer/steps.h"

namespace cordon::jailer {

namespace {

// What vm-agent is left with: to start programs under other ids, and to end them.
constexpr int kAgentCapabilities[] = {CAP_KILL, CAP_SETGID, CAP_SETUID};

bool isTheAgents(int capability) {
  for (int kept : kAgentCapabilities) {
    if (kept == capability) return true;
  }
  return false;
}

void dropBoundingSet() {
  for (int capability = 0; prctl(PR_CAPBSET_READ, capability, 0, 0, 0) >= 0; ++capability) {
    if (isTheAgents(capability)) continue;
    require(Step::kIdentity, prctl(PR_CAPBSET_DROP, capability, 0, 0, 0));
  }
}

void keepCapabilities() {
  __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {};
  for (int capability : kAgentCapabilities) {
    uint32_t bit = 1u << capability;  // all of them are below 32
    data[0].effective |= bit;
    data[0].permitted |= bit;
    data[0].inheritable |= bit;
  }
  require(Step::kIdentity, syscall(SYS_capset, &header, data));
  // Through the exec: the agent isn't root.
  for (int capability : kAgentCapabilities) {
    require(Step::kIdentity, prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, capability, 0, 0));
  }
}

}  // namespace

void setHostname(JailSpec::Reader spec) {
  auto name = spec.getHostname();
  require(Step::kHostname, sethostname(name.cStr(), name.size()));
}

void setLimits(JailSpec::Reader spec) {
  auto set = [](__rlimit_resource resource, rlim_t most) {
    rlimit limit;
    require(Step::kLimits, getrlimit(resource, &limit));
    limit.rlim_max = most < limit.rlim_max ? most : limit.rlim_max;
    limit.rlim_cur = limit.rlim_max;
    require(Step::kLimits, setrlimit(resource, &limit));
  };
  set(RLIMIT_NOFILE, spec.getFiles());
  // 1 is the kernel's own "no dump": 0 is not honoured by a piped core_pattern.
  set(RLIMIT_CORE, 1);
}

void isolateCore(JailSpec::Reader spec) {
  if (!spec.getCoreScheduling()) return;
  unsigned long cookie = 0;
  if (int error = takeCoreCookie(cookie)) fail(Step::kLimits, error);
  noteCoreCookie(cookie);
}

void becomeAgent(JailSpec::Reader spec, const Prepared& prepared) {
  // All capabilities in it, and none outside any more.
  require(Step::kIdentity, setns(prepared.user, CLONE_NEWUSER));
  require(Step::kIdentity, syscall(SYS_setgroups, 0, nullptr));
  gid_t gid = spec.getAgentGid();
  uid_t uid = spec.getAgentUid();
  require(Step::kIdentity, syscall(SYS_setresgid, gid, gid, gid));
  // Capabilities stay: the id that is given up is not the namespace's root.
  require(Step::kIdentity, syscall(SYS_setresuid, uid, uid, uid));
  dropBoundingSet();
  keepCapabilities();
  require(Step::kIdentity, prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
}

void installFilter() {
  static sock_filter program[BPF_MAXINSNS];
  ssize_t size = require(Step::kFilter, pread(kFilterFd, program, sizeof(program), 0));
  if (size == 0 || static_cast<size_t>(size) % sizeof(sock_filter) != 0) {
    fail(Step::kFilter, EMSGSIZE);
  }
  sock_fprog filter = {static_cast<unsigned short>(static_cast<size_t>(size) / sizeof(sock_filter)),
                       program};
  require(Step::kFilter, syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter));
}

void execAgent() {
  const char* argv[] = {"vm-agent", nullptr};
  const char* env[] = {"PATH=/usr/bin:/bin", nullptr};
  syscall(SYS_execveat, kAgentFd, "", argv, env, AT_EMPTY_PATH);
  fail(Step::kExec, -1);
}

}  // namespace cordon::jailer
