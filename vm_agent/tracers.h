// Programs that trace, as far as they hold others up.
//
// While a process is traced, its end is told to the tracer alone: the parent's
// wait finds nothing until the tracer has waited or is gone. And one that is
// killed may stop once more on its way out until the tracer lets it go on
// (PTRACE_O_TRACEEXIT). A program may trace whatever runs as its own user, also
// another exec's main; what must not be is that an exec does not end for it.
#pragma once
#include <kj/io.h>
#include <sys/types.h>

#include <cstdint>

namespace cordon::agent {

// Sees the end of a child of ours that its tracer keeps back, and ends that.
class EndWatch {
 public:
  // `child` is not waited for yet. Watch until it is.
  EndWatch(pid_t child, uint64_t now);

  // Readable for good once all of the child has ended, told or not. None: it
  // could not be had, and check() alone finds out.
  kj::Maybe<kj::AutoCloseFd> takeFd() { return kj::mv(fd_); }
  // That it has become readable.
  void ended(uint64_t now);

  // When check() wants to be called (monotonic us).
  uint64_t nextCheck() const { return nextCheck_; }
  // Kills the tracers of a child that has ended a while ago. A debugger that
  // does its work takes the end at once, and is left alone.
  void check(uint64_t now);

 private:
  pid_t child_;
  kj::Maybe<kj::AutoCloseFd> fd_;
  bool seenDead_ = false;
  uint64_t interval_, nextCheck_;
};

// So long a kill goes on before a tracer may be what keeps it from ending.
constexpr uint64_t kPatientKillUs = 100 * 1000;

// SIGKILL to whatever traces a thread of this process, this process itself
// apart.
void killTracers(pid_t traced);

// For what wait4 reports as stopped: it made its parent, us, its tracer
// (PTRACE_TRACEME). Lets it go on untraced.
void detachStopped(pid_t child, int status);

}  // namespace cordon::agent
