// cordon-copier's calls, of which it makes no others: files by descriptor and
// beneath one, no socket but to write its report to, no process, no memory that is
// both written and executed that a filter could tell apart.
#include <sys/stat.h>

#include "jailer/seccomp_profile.h"

namespace cordon::jailer {

Profile copierProfile() {
  Profile profile;
  profile.allowed = {
      {"the program starts", {"execveat"}},
      {"libc starts",
       {"arch_prctl", "set_tid_address", "set_robust_list", "rseq", "prlimit64", "getrandom",
        "readlink", "readlinkat", "rt_sigaction", "rt_sigprocmask"}},
      {"memory", {"brk", "mmap", "munmap", "mremap", "mprotect", "madvise", "futex"}},
      {"its descriptors",
       {"read", "write", "pread64", "pwrite64", "lseek", "close", "fcntl", "fstat", "umask"}},
      {"names beneath them", {"openat2", "newfstatat", "getdents64", "flistxattr"}},
      {"the archive reaches the disk", {"fsync"}},
      {"files are made, and removed where others take their place",
       {"ftruncate", "mkdirat", "symlinkat", "linkat", "unlinkat"}},
      {"fifos and no devices", {"mknodat"}, {{2, S_IFMT, S_IFIFO}}},
      {"owners, modes and times", {"fchown", "fchownat", "fchmod", "fchmodat", "utimensat"}},
      {"the end", {"exit_group", "exit", "getpid", "gettid", "tgkill", "rt_sigreturn"}},
  };
  return profile;
}

}  // namespace cordon::jailer
