// The frontend's allow-list. Found by tracing it through its tests; what stands
// here besides is marked so.
#include <fcntl.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include "frontend/agents/confine.h"

namespace cordon::agents {
namespace {

using jailer::kLow32;
using jailer::SyscallGroup;

std::vector<SyscallGroup> allowed() {
  return {
      {"clients, the broker and the sandboxes' streams: descriptors that were accepted or passed",
       {"accept4", "recvmsg", "sendmsg", "recvfrom", "sendto", "read", "write", "writev", "readv",
        "shutdown", "close"}},
      {"whose a connection is, and its options",
       {"getsockopt", "setsockopt", "getsockname", "getpeername"}},
      {"the way to the broker, anew after it was started again; gRPC's look at what sockets there "
       "are at its start is answered by a refusal",
       {"socket"},
       {{0, kLow32, AF_UNIX}}},
      {"the same; and the supervisor's notify socket", {"connect"}},
      {"non-blocking, close-on-exec, and the copy of a passed descriptor", {"fcntl"}},
      {"waiting: KJ's loop, gRPC's, the acceptor's; poll is KJ's without a loop",
       {"epoll_create1", "epoll_ctl", "epoll_wait", "epoll_pwait", "poll", "ppoll", "eventfd2",
        "signalfd4"}},
      {"KJ's wake-ups where there is no eventfd, and a sanitizer's look at whether memory is there",
       {"pipe2"}},
      {"time, where the vDSO does not answer",
       {"clock_gettime", "gettimeofday", "clock_nanosleep"}},
      {"memory", {"mmap", "munmap", "mremap", "mprotect", "madvise", "brk"}},
      {"threads: all that clone makes here shares everything with us",
       {"clone"},
       {{0, CLONE_THREAD | jailer::kCloneNamespaceFlags, CLONE_THREAD}}},
      {"their locks, their stacks' attributes, their ends",
       {"futex", "set_robust_list", "rseq", "sched_yield", "sched_getscheduler", "sched_getparam",
        "sched_getaffinity", "gettid", "exit"}},
      {"their names", {"prctl"}, {{0, kLow32, PR_SET_NAME}}},
      {"signals: those that end us, an alarm for an end that takes too long, abort()",
       {"rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sigaltstack", "alarm", "tgkill",
        "restart_syscall", "exit_group"}},
      {"who we are: calls that never fail, so that nobody looks",
       {"getpid", "getppid", "getuid", "geteuid", "getgid", "getegid"}},
      {"files of the system, to be read: the clock's zone, the number of CPUs, what libraries look "
       "for. Ours is no uid that owns one",
       {"openat"},
       {{2, O_ACCMODE | O_CREAT | O_TRUNC, O_RDONLY}}},
      {"the same", {"newfstatat", "lseek"}},
      {"limits, to be read", {"prlimit64"}, {{2, jailer::kAll64, 0}}},
      {"calls of an explained program: what the kernel asks is taken and answered",
       {"ioctl"},
       {{1, kLow32, SECCOMP_IOCTL_NOTIF_RECV}, {1, kLow32, SECCOMP_IOCTL_NOTIF_SEND}}},
      {"whether it is the kernel that asks: the name of a descriptor", {"readlink"}},
      {"which machine, which CPU", {"uname", "getcpu"}},
      {"randomness: hash seeds of gRPC", {"getrandom"}},
  };
}

std::vector<SyscallGroup> absent() {
  return {
      {"flags are in memory, where a filter can't look: libc falls back to clone", {"clone3"}},
      {"libc does the same with an older call, but only after ENOSYS",
       {"statx", "faccessat2", "epoll_pwait2", "openat2"}},
      {"libc does without", {"membarrier", "close_range", "memfd_create"}},
  };
}

}  // namespace

jailer::Profile frontendCalls() {
  jailer::Profile profile;
  profile.allowed = allowed();
  profile.absent = absent();
  // Everything else answers EPERM.
  return profile;
}

}  // namespace cordon::agents
