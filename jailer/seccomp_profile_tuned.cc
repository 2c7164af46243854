#include <errno.h>
#include <sys/mman.h>

#include "jailer/seccomp_profile.h"

namespace cordon::jailer {

namespace {

std::vector<SyscallGroup> allowedByTuned() {
  return {
      {"reading, writing and mapping files; pread64 loads every library, pwrite64 and "
       "fdatasync are sqlite's",
       {"openat", "close", "read", "write", "lseek", "pread64", "pwrite64", "ftruncate",
        "fdatasync"}},
      {"descriptors; os.dup and the shells' redirections use fcntl too",
       {"dup2", "fcntl", "pipe2"}},
      {"metadata; statx falls back to newfstatat, faccessat2 to faccessat (`test -r` of bash), "
       "os.access uses access",
       {"newfstatat", "access", "faccessat", "getdents64", "readlink"}},
      {"the directory one is in; fchdir is how `mkdir -p` and find go back",
       {"getcwd", "chdir", "fchdir"}},
      {"making, moving and removing: Python's form, and the form with a directory that "
       "coreutils use",
       {"mkdir", "mkdirat", "rmdir", "symlinkat", "unlink", "unlinkat", "rename", "renameat2"}},
      {"modes and times; fchmod is that of `sed -i` and os.fchmod",
       {"chmod", "fchmod", "fchmodat", "umask", "utimensat"}},
      {"memory, without brk and mremap: malloc goes on with mmap; no huge pages, whose pool is the "
       "machine's",
       {"mmap"},
       {{3, MAP_HUGETLB, 0}}},
      {"the same", {"munmap", "mprotect"}},
      {"threads: their locks, their end, and what raise() and abort() name themselves by",
       {"futex", "exit", "gettid", "tgkill", "arch_prctl"}},
      {"starting programs and waiting for them; vfork is dash's, which is `sh`",
       {"execve", "exit_group", "vfork", "wait4"}},
      {"clone without any namespace flag: threads and plain children",
       {"clone"},
       {{0, kCloneNamespaceFlags, 0}}},
      {"signals; alarm is that of timeout(1) and signal.alarm, sigaltstack of faulthandler, "
       "rt_sigsuspend of `wait` in sh",
       {"kill", "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "rt_sigsuspend", "sigaltstack",
        "alarm"}},
      {"waiting for descriptors and for time: subprocess polls, select.select and `read -t` "
       "select",
       {"poll", "pselect6", "clock_nanosleep"}},
      {"clocks that the vDSO does not answer, as that of time.thread_time", {"clock_gettime"}},
      {"who one is: calls that never fail, so that nobody looks (kill(getppid()) with -1 would be "
       "every process)",
       {"getuid", "geteuid", "getgid", "getegid", "getpid", "getppid", "set_tid_address"}},
      {"process groups: job control, timeout(1) and start_new_session",
       {"getpgrp", "setpgid", "setsid"}},
      {"os.uname, and the figures of `time` and the resource module", {"uname", "getrusage"}},
      {"limits can be read; the sandbox sets them", {"prlimit64"}, {{2, kAll64, 0}}},
  };
}

std::vector<SyscallGroup> absentFromTuned() {
  return {
      {"flags are in memory, where a filter can't look: libc falls back to clone", {"clone3"}},
      {"libc does the same with an older call that passes, but only after ENOSYS",
       {"statx", "faccessat2", "fchmodat2", "openat2", "epoll_pwait2", "preadv2", "pwritev2"}},
      {"programs do without: restartable sequences, closing many descriptors at once, copies "
       "inside the kernel, and what is newer than they can rely on",
       {"rseq", "close_range", "copy_file_range", "memfd_create", "membarrier", "pidfd_open",
        "execveat"}},
      {"timeout(1) takes alarm, and rounds up to seconds", {"timer_create"}},
      {"id says the one group then", {"getgroups"}},
      {"Python reads /dev/urandom; shuf and `sort -R` fail", {"getrandom"}},
      {"the widest entry of the kernel, for terminals above all: nothing here is one, and "
       "ENOTTY is what everything else says (Python sets close-on-exec with fcntl then)",
       {"ioctl"},
       {},
       ENOTTY},
      {"as of a file system without extended attributes; cp and shutil go on",
       {"getxattr", "lgetxattr", "fgetxattr", "setxattr", "lsetxattr", "fsetxattr", "listxattr",
        "llistxattr", "flistxattr", "removexattr", "lremovexattr", "fremovexattr"},
       {},
       EOPNOTSUPP},
      {"as of a file that can't be synchronised: nothing outlives the sandbox; sqlite takes "
       "fdatasync",
       {"fsync"},
       {},
       EINVAL},
      {"grep reads a pipe by itself when told that it can't be spliced", {"splice"}, {}, EINVAL},
      {"util-linux duplicates its output to see whether closing works, and takes EBADF for "
       "an output that was closed before",
       {"dup"},
       {},
       EBADF},
  };
}

std::vector<SyscallGroup> refusedByTuned() {
  return {
      {"sockets: the network namespace holds nothing but a loopback, and their code is the "
       "largest that a program could reach; servers on loopback are for `build`",
       {"socket", "socketpair", "bind", "listen", "accept", "accept4", "connect", "getsockname",
        "getpeername", "getsockopt", "setsockopt", "sendto", "sendmsg", "sendmmsg", "recvfrom",
        "recvmsg", "recvmmsg", "shutdown"}},
      {"no program of this kind was seen to need one of its options", {"prctl"}},
      {"selectors.DefaultSelector takes poll then",
       {"epoll_create", "epoll_create1", "epoll_ctl", "epoll_wait", "epoll_pwait"}},
      {"hard links, os.symlink (tarfile unpacks a copy then), fifos and other owners: rare, and "
       "they fail loudly",
       {"link", "symlink", "linkat", "mknod", "mknodat", "chown", "fchown", "lchown", "fchownat"}},
  };
}

}  // namespace

Profile tunedProfile() {
  return {allowedByTuned(), {}, absentFromTuned(), refusedByTuned()};
}

}  // namespace cordon::jailer
