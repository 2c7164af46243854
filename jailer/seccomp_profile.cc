#include "jailer/seccomp_profile.h"

#include <kj/debug.h>
#include <linux/netlink.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>

namespace cordon::jailer {

namespace {

std::vector<SyscallGroup> allowedByDefault() {
  return {
      {"files: open, read, write, map, close", {"open",      "openat",
                                                "openat2",   "creat",
                                                "close",     "close_range",
                                                "read",      "readv",
                                                "pread64",   "preadv",
                                                "preadv2",   "write",
                                                "writev",    "pwrite64",
                                                "pwritev",   "pwritev2",
                                                "lseek",     "sendfile",
                                                "splice",    "tee",
                                                "vmsplice",  "copy_file_range",
                                                "readahead", "fadvise64",
                                                "fallocate", "truncate",
                                                "ftruncate", "fsync",
                                                "fdatasync", "sync",
                                                "syncfs",    "sync_file_range",
                                                "cachestat"}},
      {"file descriptors", {"dup", "dup2", "dup3", "fcntl", "flock", "pipe", "pipe2"}},
      {"ioctl on what is open; two requests are refused (refusedArguments)", {"ioctl"}},
      {"names and metadata; permission is the file system's business",
       {"access",           "faccessat",  "faccessat2", "stat",     "fstat",     "lstat",
        "newfstatat",       "statx",      "statfs",     "fstatfs",  "getdents",  "getdents64",
        "readlink",         "readlinkat", "getcwd",     "chdir",    "fchdir",    "mkdir",
        "mkdirat",          "rmdir",      "link",       "linkat",   "symlink",   "symlinkat",
        "unlink",           "unlinkat",   "rename",     "renameat", "renameat2", "chmod",
        "fchmod",           "fchmodat",   "fchmodat2",  "chown",    "fchown",    "lchown",
        "fchownat",         "umask",      "utime",      "utimes",   "utimensat", "futimesat",
        "name_to_handle_at"}},
      {"mknod: fifos and sockets; devices need CAP_MKNOD and a mount that is not nodev",
       {"mknod", "mknodat"}},
      {"extended attributes",
       {"getxattr", "lgetxattr", "fgetxattr", "setxattr", "lsetxattr", "fsetxattr", "listxattr",
        "llistxattr", "flistxattr", "removexattr", "lremovexattr", "fremovexattr"}},
      {"watching files; fanotify_init, which makes the fd, is refused",
       {"inotify_init", "inotify_init1", "inotify_add_watch", "inotify_rm_watch", "fanotify_mark"}},
      {"mapping memory and files, without huge pages: their pool is the machine's, and no limit of "
       "a sandbox counts them",
       {"mmap"},
       {{3, MAP_HUGETLB, 0}}},
      {"files in memory, likewise", {"memfd_create"}, {{1, MFD_HUGETLB, 0}}},
      {"memory",
       {"brk",
        "munmap",
        "mremap",
        "mprotect",
        "madvise",
        "mincore",
        "msync",
        "mlock",
        "mlock2",
        "mlockall",
        "munlock",
        "munlockall",
        "remap_file_pages",
        "memfd_secret",
        "membarrier",
        "pkey_alloc",
        "pkey_free",
        "pkey_mprotect",
        "map_shadow_stack",
        "process_mrelease"}},
      {"waiting for many fds",
       {"poll", "ppoll", "select", "pselect6", "epoll_create", "epoll_create1", "epoll_ctl",
        "epoll_wait", "epoll_pwait", "epoll_pwait2", "eventfd", "eventfd2", "signalfd",
        "signalfd4"}},
      {"the old asynchronous I/O, of which nothing can be begun (io_setup)",
       {"io_submit", "io_cancel", "io_destroy", "io_getevents", "io_pgetevents"}},
      {"starting and ending processes; clone3 hides its flags in memory and is absent",
       {"fork", "vfork", "execve", "execveat", "exit", "exit_group", "wait4", "waitid"}},
      {"clone without any namespace flag: threads and plain children",
       {"clone"},
       {{0, kCloneNamespaceFlags, 0}}},
      {"threads and their locks",
       {"futex", "futex_waitv", "futex_wake", "futex_wait", "futex_requeue", "set_robust_list",
        "get_robust_list", "set_tid_address", "gettid", "rseq", "set_thread_area",
        "get_thread_area", "arch_prctl", "modify_ldt"}},
      {"signals; who may be signalled is decided by uid and pid namespace",
       {"kill", "tkill", "tgkill", "rt_sigaction", "rt_sigprocmask", "rt_sigreturn",
        "rt_sigpending", "rt_sigsuspend", "rt_sigtimedwait", "rt_sigqueueinfo", "rt_tgsigqueueinfo",
        "sigaltstack", "pause", "restart_syscall", "pidfd_open", "pidfd_send_signal"}},
      {"identity: without capabilities only among the ids a process has",
       {"getuid", "geteuid", "getgid", "getegid", "getresuid", "getresgid", "getgroups", "setuid",
        "setgid", "setreuid", "setregid", "setresuid", "setresgid", "setgroups", "setfsuid",
        "setfsgid", "capget", "capset"}},
      {"process groups and relations",
       {"getpid", "getppid", "getpgrp", "getpgid", "setpgid", "getsid", "setsid"}},
      {"narrowing oneself further",
       {"prctl", "seccomp", "landlock_create_ruleset", "landlock_add_rule",
        "landlock_restrict_self"}},
      {"debuggers and profilers of one's own children: needs the same uid and a dumpable "
       "target, which the agent is not",
       {"ptrace", "process_vm_readv", "process_vm_writev"}},
      {"scheduling of one's own processes",
       {"sched_yield", "sched_getaffinity", "sched_setaffinity", "sched_getattr", "sched_setattr",
        "sched_getparam", "sched_setparam", "sched_getscheduler", "sched_setscheduler",
        "sched_get_priority_max", "sched_get_priority_min", "sched_rr_get_interval", "getpriority",
        "setpriority", "ioprio_get", "ioprio_set", "getcpu"}},
      {"reading and lowering limits; RLIMIT_CORE can be read only (refusedArguments)",
       {"getrlimit", "setrlimit", "prlimit64", "getrusage", "sysinfo", "times", "uname"}},
      {"clocks; setting one needs CAP_SYS_TIME of the host",
       {"time", "gettimeofday", "clock_gettime", "clock_getres", "clock_nanosleep", "nanosleep",
        "adjtimex", "clock_adjtime"}},
      {"timers",
       {"alarm", "getitimer", "setitimer", "timer_create", "timer_settime", "timer_gettime",
        "timer_getoverrun", "timer_delete", "timerfd_create", "timerfd_settime",
        "timerfd_gettime"}},
      {"randomness", {"getrandom"}},
      {"sockets of four families: AF_VSOCK would reach the hypervisor and AF_ALG, AF_PACKET and "
       "the rest are kernel code that nothing here needs",
       {"socket"},
       {{0, kLow32, AF_UNIX},
        {0, kLow32, AF_INET},
        {0, kLow32, AF_INET6},
        {0, kLow32, AF_NETLINK}}},
      {"using sockets; the network namespace has nothing but its loopback",
       {"socketpair", "bind", "listen", "accept", "accept4", "connect", "getsockname",
        "getpeername", "getsockopt", "setsockopt", "sendto", "sendmsg", "sendmmsg", "recvfrom",
        "recvmsg", "recvmmsg", "shutdown"}},
      {"System V and POSIX IPC of the own ipc namespace",
       {"semget", "semop", "semtimedop", "semctl", "shmget", "shmat", "shmdt", "shmctl", "msgget",
        "msgsnd", "msgrcv", "msgctl", "mq_open", "mq_unlink", "mq_timedsend", "mq_timedreceive",
        "mq_notify", "mq_getsetattr"}},
      {"personality: Linux, Linux32 and UNAME26 with them, and asking; ADDR_NO_RANDOMIZE and "
       "READ_IMPLIES_EXEC weaken the program",
       {"personality"},
       {{0, kLow32, 0x0},
        {0, kLow32, 0x8},
        {0, kLow32, 0x20000},
        {0, kLow32, 0x20008},
        {0, kLow32, 0xffffffff}}},
  };
}

std::vector<SyscallGroup> absentByDefault() {
  return {
      {"flags are in memory, where a filter can't look: libc falls back to clone", {"clone3"}},
      {"the machine has 65,536 such requests (fs.aio-max-nr), which one sandbox could take",
       {"io_setup"}},
      {"the kernel itself has no such call any more",
       {"_sysctl", "create_module", "get_kernel_syms", "query_module", "nfsservctl", "getpmsg",
        "putpmsg", "afs_syscall", "tuxcall", "security", "vserver", "epoll_ctl_old",
        "epoll_wait_old", "uselib", "lookup_dcookie"}},
  };
}

std::vector<SyscallGroup> refusedByDefault() {
  return {
      {"namespaces", {"unshare", "setns"}},
      {"mounts",
       {"mount", "umount2", "pivot_root", "chroot", "open_tree", "move_mount", "fsopen", "fsconfig",
        "fsmount", "fspick", "mount_setattr", "quotactl", "quotactl_fd"}},
      {"a file handle opens files past every path check", {"open_by_handle_at"}},
      {"kernel code and tracing: large attack surface",
       {"bpf", "perf_event_open", "userfaultfd", "fanotify_init"}},
      {"io_uring does its work past this filter",
       {"io_uring_setup", "io_uring_enter", "io_uring_register"}},
      {"keyrings belong to no namespace", {"add_key", "request_key", "keyctl"}},
      {"another process's memory placement, fds and kernel objects",
       {"kcmp", "pidfd_getfd", "process_madvise", "migrate_pages", "move_pages", "mbind",
        "set_mempolicy", "get_mempolicy", "set_mempolicy_home_node"}},
      {"the machine: modules, kernels, power, swap, accounting, ports, names, clock, log",
       {"init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load", "reboot",
        "swapon", "swapoff", "acct", "iopl", "ioperm", "sethostname", "setdomainname",
        "settimeofday", "clock_settime", "syslog", "vhangup"}},
      {"obsolete and answering questions about the host", {"ustat", "sysfs"}},
  };
}

void removeCall(std::vector<SyscallGroup>& groups, std::string_view call) {
  for (SyscallGroup& group : groups) {
    group.calls.erase(std::remove(group.calls.begin(), group.calls.end(), call), group.calls.end());
  }
  groups.erase(std::remove_if(groups.begin(), groups.end(),
                              [](const SyscallGroup& group) { return group.calls.empty(); }),
               groups.end());
}

constexpr struct {
  const char* name;
  Profile (*make)();
} kProfiles[] = {
    {"default", &defaultProfile},
    {"tuned", &tunedProfile},
    {"build", &buildProfile},
};

}  // namespace

const std::vector<std::string>& profileNames() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const auto& profile : kProfiles) all.emplace_back(profile.name);
    return all;
  }();
  return names;
}

bool Profile::allows(std::string_view call) const {
  return std::any_of(allowed.begin(), allowed.end(), [call](const SyscallGroup& group) {
    return std::find(group.calls.begin(), group.calls.end(), call) != group.calls.end();
  });
}

Profile profileNamed(std::string_view name) {
  for (const auto& profile : kProfiles) {
    if (name == profile.name) return profile.make();
  }
  KJ_FAIL_REQUIRE("no such seccomp profile", std::string(name).c_str());
}

std::vector<RefusedArgument> refusedToEverybody() {
  const char* kTracers =
      "processes that trace each other's exit wait for each other for ever, and no signal ends "
      "them";
  const char* kFilters = "compiled filters of sockets count for the machine, not for a sandbox";
  AlsoArgument traceExit = {3, PTRACE_O_TRACEEXIT, PTRACE_O_TRACEEXIT};
  AlsoArgument ofSocket = {1, 0xffffffff, SOL_SOCKET};
  AlsoArgument otherThanRoute = {2, 0xffffffff, NETLINK_ROUTE, true};
  return {
      {kTracers, "ptrace", 0, PTRACE_SEIZE, -1, traceExit},
      {kTracers, "ptrace", 0, PTRACE_SETOPTIONS, -1, traceExit},
      {kFilters, "setsockopt", 2, SO_ATTACH_FILTER, -1, ofSocket},
      {kFilters, "setsockopt", 2, SO_ATTACH_REUSEPORT_CBPF, -1, ofSocket},
      {"messages that wait in a netlink socket are in nobody's memory limit: the kernel's answers "
       "about interfaces alone",
       "socket", 0, AF_NETLINK, -1, otherThanRoute},
  };
}

Profile defaultProfile() {
  Profile profile = {
      allowedByDefault(),
      {
          {"types into the terminal it was started from", "ioctl", 1, TIOCSTI},
          {"the console's paste buffer does the same", "ioctl", 1, 0x541C /* TIOCLINUX */},
          // With another value than the hard limit 1 that the sandbox starts with, a
          // piped core_pattern would run a root helper on the host.
          {"a core file starts a root helper on the host", "setrlimit", 0, RLIMIT_CORE},
          {"the same; reading it stays", "prlimit64", 1, RLIMIT_CORE, 2},
      },
      absentByDefault(),
      refusedByDefault()};
  for (auto& refused : refusedToEverybody()) profile.refusedArguments.push_back(refused);
  return profile;
}

Profile agentProfile() {
  Profile profile = defaultProfile();
  removeCall(profile.absent, "clone3");
  profile.allowed.push_back(
      {"the agent starts an exec in its cgroup (CLONE_INTO_CGROUP)", {"clone3"}});
  // No terminal ever reaches the agent, it sets its children's RLIMIT_CORE, and
  // an allow-list of an OCI runtime can't express these.
  profile.refusedArguments.clear();
  return profile;
}

Profile without(Profile profile, std::string_view call) {
  removeCall(profile.allowed, call);
  removeCall(profile.absent, call);
  removeCall(profile.refused, call);
  return profile;
}

}  // namespace cordon::jailer
