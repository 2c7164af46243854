// Core scheduling: the threads of one core run at the same time only what has the
// same cookie, so that no program can watch another through what siblings share
// (caches, buffers, ports). A sandbox has a cookie of its own, which everything
// that it starts inherits. System calls alone: used between clone and exec, too.
#pragma once
#include <sys/prctl.h>

#include <cerrno>

namespace cordon::jailer {

// Of the calling thread; 0 = none. Errno, or 0: ENODEV where no core has a second
// thread that is in use, EINVAL where the kernel has no core scheduling.
inline int readCoreCookie(unsigned long& cookie) {
  constexpr int kThread = 0;  // PIDTYPE_PID, which no header has
  return prctl(PR_SCHED_CORE, PR_SCHED_CORE_GET, 0, kThread, &cookie) == 0 ? 0 : errno;
}

// Gives this process a new one, and reads it back. Errno, or 0.
inline int takeCoreCookie(unsigned long& cookie) {
  constexpr int kProcess = 1;  // PIDTYPE_TGID
  if (prctl(PR_SCHED_CORE, PR_SCHED_CORE_CREATE, 0, kProcess, 0) != 0) return errno;
  if (int error = readCoreCookie(cookie)) return error;
  return cookie != 0 ? 0 : ENODATA;
}

}  // namespace cordon::jailer
