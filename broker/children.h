// Processes that the broker starts, and their ends.
//
// Everything goes by pidfd: a child is spawned without a copy of the broker's
// address space or of its table of descriptors, gets a pidfd at once, and its
// end is awaited with UnixEventPort::FdObserver and waitid(P_PIDFD). The broker
// is a child subreaper (becomeSubreaper), so the init of a detached runc falls to
// it and its exit status is the kernel's word, too.
//
// Exactly one Children object per process, made by main and passed by reference
// to whoever starts processes: a second one would reap the first one's children
// as strays. Everything on its loop's thread.
#pragma once
#include <kj/async-unix.h>
#include <kj/io.h>
#include <sys/types.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace cordon::broker {

struct ExitStatus {
  bool signaled = false;
  int code = 0;  // exit status, or the signal's number when `signaled`
};

struct SpawnSpec {
  std::string program;            // absolute path
  std::vector<std::string> argv;  // argv[0] included
  std::vector<std::string> env;   // the whole environment
  std::string cwd = "/";
  // {source fd, target fd}, at most 31, targets below 256, each once; sources may be any
  // fds, also ones that are somebody's target. Everything else is closed.
  // Targets 0..2 that are not named become /dev/null.
  std::vector<std::pair<int, int>> fds;
  // Takes a core scheduling cookie of its own before exec, for itself and all that
  // it starts (jailer/core_scheduling.h); spawn() throws where it can't.
  bool ownCore = false;
};

// Owns the pidfd. Dropping a Child neither kills nor reaps; what it leaves is a
// stray (Children::reapStrays). May outlive the Children it came from.
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
  // The one it took, as the kernel told it then; 0 = ownCore was not asked for.
  virtual uint64_t coreCookie() const { return 0; }
};

class ChildRegistry;  // which pids have an owner
class SpawnWindow;

// Starts processes, and knows which of ours have an owner.
class Children {
 public:
  explicit Children(kj::UnixEventPort& port);
  ~Children() noexcept(false);
  KJ_DISALLOW_COPY(Children);

  kj::UnixEventPort& port() { return port_; }

  // Blocked signals and ignored dispositions are reset in the child, which is
  // the leader of a new session. Takes about 0.3 ms of the loop. Throws (kj)
  // when the program can't be executed.
  kj::Own<Child> spawn(const SpawnSpec& spec);

  // Takes charge of a process that fell to us as its subreaper, living or
  // zombie. Null when it is no child of ours, or another Child has it.
  kj::Maybe<kj::Own<Child>> adopt(pid_t pid);

  // Reaps zombies that fell to us and that no Child owns (helpers of a runtime
  // that was killed half way). Never takes a status away from a Child. Call on
  // SIGCHLD and after a destroy. Returns how many (at most kMostStraysPerCall;
  // that many = call again); 0 while a StrayHold lives: call when it ends.
  static constexpr size_t kMostStraysPerCall = 256;
  size_t reapStrays();

  // While it lives strays stay zombies. Take one before starting a runtime
  // whose init falls to us, and drop it after adopt(): else an init that dies
  // at once is reaped as a stray, and its status is lost.
  class StrayHold {
   public:
    explicit StrayHold(std::shared_ptr<ChildRegistry> registry);
    ~StrayHold();
    StrayHold(StrayHold&&) = default;
    KJ_DISALLOW_COPY(StrayHold);

   private:
    std::shared_ptr<ChildRegistry> registry_;
  };
  StrayHold holdStrays();

 private:
  kj::UnixEventPort& port_;
  std::shared_ptr<ChildRegistry> registry_;
  std::unique_ptr<SpawnWindow> window_;
};

// PR_SET_CHILD_SUBREAPER for this process.
void becomeSubreaper();

}  // namespace cordon::broker
