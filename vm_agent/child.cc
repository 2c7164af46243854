#include "vm_agent/child.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstring>

#include "ipc/guest.capnp.h"
#include "vm_agent/listener.h"

namespace cordon::agent {

namespace {

using guest::FailStep;

[[noreturn]] void fail(const ChildPlan& plan, FailStep step, int error) {
  ChildFailure failure = {static_cast<uint32_t>(step), error};
  // Nothing is left to do when even this fails: the parent sees the exit.
  ssize_t ignored = write(plan.failureFd, &failure, sizeof(failure));
  static_cast<void>(ignored);
  _exit(127);
}

void require(const ChildPlan& plan, FailStep step, long result) {
  if (result < 0) fail(plan, step, errno);
}

void joinCgroups(const ChildPlan& plan) {
  for (size_t i = 0; i < plan.taskFdCount; ++i) {
    require(plan, FailStep::CGROUP, write(plan.taskFds[i], "0", 1));
  }
}

void installStdio(const ChildPlan& plan) {
  // The pipes are all above 2 (the agent keeps 0-2 open), so no dup2 here can
  // overwrite a source of a later one. The copies are not CLOEXEC.
  if (plan.stdinFd >= 0) require(plan, FailStep::STDIO, dup2(plan.stdinFd, 0));
  require(plan, FailStep::STDIO, dup2(plan.stdoutFd, 1));
  require(plan, FailStep::STDIO, dup2(plan.stderrFd, 2));
}

// The agent blocks all and handles none (main.cc): the mask is all there is.
void unblockSignals() {
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

void setLimits(const ChildPlan& plan) {
  for (size_t i = 0; i < plan.limitCount; ++i) {
    const auto& limit = plan.limits[i];
    require(plan, FailStep::RLIMITS,
            prlimit(0, static_cast<__rlimit_resource>(limit.resource), &limit.value, nullptr));
  }
  // Exactly 1 is the kernel's own "no dump at all" value: with a piped
  // core_pattern, 0 still starts the helper. A hard limit of 0 can't be raised.
  rlimit core = {};
  require(plan, FailStep::RLIMITS, getrlimit(RLIMIT_CORE, &core));
  if (core.rlim_max != 0) {
    core = {1, 1};
    require(plan, FailStep::RLIMITS, setrlimit(RLIMIT_CORE, &core));
  }
}

void dropCapabilities(const ChildPlan& plan) {
  require(plan, FailStep::USER, prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0));
  __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {};
  require(plan, FailStep::USER, syscall(SYS_capset, &header, none));
}

void becomeUser(const ChildPlan& plan) {
  const gid_t groups[] = {plan.gid};
  require(plan, FailStep::USER, syscall(SYS_setgroups, 1, groups));
  require(plan, FailStep::USER, syscall(SYS_setresgid, plan.gid, plan.gid, plan.gid));
  require(plan, FailStep::USER, syscall(SYS_setresuid, plan.uid, plan.uid, plan.uid));
  // From here on other processes of that uid can signal this one; the agent
  // doesn't wait for it. Capabilities do not go by themselves: a change between
  // two ids that are not 0 keeps them all.
  dropCapabilities(plan);
}

void enterDirectory(const ChildPlan& plan) {
  require(plan, FailStep::CWD, chdir(plan.workDir));
  if (plan.cwd[0] != '\0') require(plan, FailStep::CWD, chdir(plan.cwd));
}

void closeOthers(const ChildPlan& plan) {
  // They are CLOEXEC already; this holds should one ever not be. The failure
  // pipe is among them and must stay open until the exec.
  require(plan, FailStep::STDIO, syscall(SYS_close_range, 3u, UINT_MAX, CLOSE_RANGE_CLOEXEC));
}

void closeRange(const ChildPlan& plan, int first, unsigned last) {
  if (static_cast<unsigned>(first) > last) return;
  require(plan, FailStep::STDIO, syscall(SYS_close_range, first, last, 0));
}

Courier startCourier(const ChildPlan& plan) {
  Courier courier;
  if (plan.listenerSocket < 0) return courier;
  // The agent's own descriptors have low numbers: the listener's has to be below
  // the program's limit.
  auto [low, high] = std::minmax(plan.failureFd, plan.listenerSocket);
  closeRange(plan, 3, static_cast<unsigned>(low) - 1);
  closeRange(plan, low + 1, static_cast<unsigned>(high) - 1);
  closeRange(plan, high + 1, UINT_MAX);
  if (int error = courier.start(plan.listenerSocket)) fail(plan, FailStep::SECCOMP, error);
  return courier;
}

void installFilter(const ChildPlan& plan, const Courier& courier) {
  if (plan.filter.len == 0) return;
  bool asks = plan.listenerSocket >= 0;
  // Once the listener was told of a call, a signal that doesn't kill must not
  // interrupt it: the call would be made again, and counted again.
  unsigned flags =
      asks ? SECCOMP_FILTER_FLAG_NEW_LISTENER | SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV : 0;
  long listener = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &plan.filter);
  require(plan, FailStep::SECCOMP, listener);
  if (!asks) return;
  // From here on until it is delivered, a refused call would never return.
  if (int error = courier.deliver(static_cast<int>(listener))) {
    fail(plan, FailStep::SECCOMP, error);
  }
}

// execvpe's rules without its shell fallback.
[[noreturn]] void execProgram(const ChildPlan& plan) {
  const char* name = plan.argv[0];
  if (strchr(name, '/') != nullptr) {
    execve(name, plan.argv, plan.envp);
    fail(plan, FailStep::EXEC, errno);
  }
  size_t nameSize = strlen(name);
  if (nameSize == 0) fail(plan, FailStep::LOOKUP, ENOENT);
  if (nameSize > NAME_MAX) fail(plan, FailStep::LOOKUP, ENAMETOOLONG);
  bool denied = false;
  char candidate[PATH_MAX + NAME_MAX + 2];
  for (const char* at = plan.searchPath;;) {
    const char* end = strchrnul(at, ':');
    auto size = static_cast<size_t>(end - at);
    if (size < PATH_MAX) {
      // An empty element is the current directory.
      memcpy(candidate, at, size);
      size_t used = size;
      if (used > 0) candidate[used++] = '/';
      memcpy(candidate + used, name, nameSize + 1);
      execve(candidate, plan.argv, plan.envp);
      switch (errno) {
        case EACCES:
          denied = true;
          break;
        case ENOENT:
        case ENOTDIR:
        case ENAMETOOLONG:
        case ESTALE:
        case ENODEV:
        case ETIMEDOUT:
          break;
        default:
          fail(plan, FailStep::EXEC, errno);
      }
    }
    if (*end == '\0') break;
    at = end + 1;
  }
  if (denied) fail(plan, FailStep::EXEC, EACCES);
  fail(plan, FailStep::LOOKUP, ENOENT);
}

}  // namespace

void ChildPlan::addLimit(int resource, uint64_t soft, uint64_t hard) {
  limits[limitCount++] = {resource, {soft, hard}};
}

void becomeProgram(const ChildPlan& plan) {
  // First, so that everything after is charged to the exec; and while this is
  // still the agent's uid, under which nobody else can interfere.
  joinCgroups(plan);
  // A session of its own: no signal of ours or another exec's terminal group.
  setsid();
  umask(022);
  installStdio(plan);
  unblockSignals();
  // Still as the agent: no program can stop it.
  Courier courier = startCourier(plan);
  // Before the user changes: lowering needs no privilege, and the new user must
  // never have run without them.
  setLimits(plan);

  // ---- Here the agent's three capabilities go, and with them its uid. ----
  if (plan.switchUser) becomeUser(plan);
  // As the program's user, who may lack the permission.
  enterDirectory(plan);
  if (plan.switchUser || plan.filter.len > 0) {
    require(plan, FailStep::USER, prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
  }
  closeOthers(plan);
  // Last: nothing above has to be in the program's allow-list. The lookup comes
  // after it and under the program's uid, so that what it can find out is only
  // what the program could.
  installFilter(plan, courier);
  execProgram(plan);
}

}  // namespace cordon::agent
