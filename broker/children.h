// Processes that the broker starts, and their ends.
//
// Everything goes by pidfd: a child is spawned without forking the broker's
// address space (posix_spawn), gets a pidfd at once, and its end is awaited
// with UnixEventPort::FdObserver and waitid(P_PIDFD). The broker is a child
// subreaper (becomeSubreaper), so the init of a detached runc falls to it and
// its exit status is the kernel's word, too.
#pragma once
#include <kj/async-unix.h>
#include <kj/io.h>
#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

namespace cordon::broker {

struct ExitStatus {
  bool signaled = false;
  int code = 0;  // exit status, or the signal's number when `signaled`
};

struct SpawnSpec {
  std::string program;              // absolute path
  std::vector<std::string> argv;    // argv[0] included
  std::vector<std::string> env;     // the whole environment
  std::string cwd = "/";
  // {source fd, target fd}; everything else is closed (all our fds are
  // CLOEXEC). Targets 0..2 that are not named become /dev/null.
  std::vector<std::pair<int, int>> fds;
};

// Owns the pidfd. Dropping a Child neither kills nor reaps: kill() and await
// onExit() first, or it stays a zombie until the broker ends.
class Child {
 public:
  virtual ~Child() noexcept(false) = default;
  virtual pid_t pid() const = 0;
  // SIGKILL and friends through the pidfd; false when it is already dead.
  virtual bool signal(int signo) = 0;
  // Resolves when it has ended and was reaped. May be called several times.
  virtual kj::Promise<ExitStatus> onExit() = 0;
  // The status when it has ended already.
  virtual kj::Maybe<ExitStatus> exited() const = 0;
};

// Blocked signals and ignored dispositions are reset in the child, which is the
// leader of a new session. Takes about 0.3 ms of the loop.
kj::Own<Child> spawn(kj::UnixEventPort& port, const SpawnSpec& spec);

// Takes charge of a process that fell to us as its subreaper. Null when there
// is no such child of ours.
kj::Maybe<kj::Own<Child>> adopt(kj::UnixEventPort& port, pid_t pid);

// PR_SET_CHILD_SUBREAPER for this process.
void becomeSubreaper();

// Reaps zombies that fell to us and that no Child owns (helpers of a runtime
// that was killed half way). Call on SIGCHLD and after a destroy.
void reapStrays();

}  // namespace cordon::broker
