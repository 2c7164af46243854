#include "broker/children.h"

#include <errno.h>
#include <fcntl.h>
#include <kj/debug.h>
#include <linux/close_range.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <map>

#include "jailer/core_scheduling.h"

// glibc 2.36 forgot the guard.
extern "C" {
#include <sys/pidfd.h>
}

namespace cordon::broker {

// Not in the anonymous namespace: ChildRegistry, which the header names, holds it.
class ChildImpl;

namespace {
constexpr int kMaxTarget = 255;
}  // namespace

class ChildRegistry {
 public:
  std::map<pid_t, ChildImpl*> owned;
  size_t holds = 0;
};

namespace {

// waitid on one process; nothing while it runs. ECHILD (not ours) is `ours`
// set to false.
struct Waited {
  bool ours = true;
  kj::Maybe<ExitStatus> status;
};

Waited waitPidfd(int pidfd, int extraFlags) {
  siginfo_t info{};
  // __WALL: also a child whose exit signal is not SIGCHLD.
  if (waitid(static_cast<idtype_t>(P_PIDFD), static_cast<id_t>(pidfd), &info,
             WEXITED | WNOHANG | __WALL | extraFlags) < 0) {
    int error = errno;
    if (error == ECHILD) return {false, nullptr};
    KJ_FAIL_SYSCALL("waitid(P_PIDFD)", error);
  }
  if (info.si_pid == 0) return {true, nullptr};
  return {true, ExitStatus{info.si_code != CLD_EXITED, info.si_status}};
}

bool pollReadable(int fd) {
  pollfd p{fd, POLLIN, 0};
  int n;
  KJ_SYSCALL(n = poll(&p, 1, 0));
  return n > 0;
}

}  // namespace

class ChildImpl final : public Child {
 public:
  ChildImpl(kj::UnixEventPort& port, std::shared_ptr<ChildRegistry> registry, pid_t pid,
            kj::AutoCloseFd pidfd, uint64_t coreCookie = 0)
      : pid_(pid),
        coreCookie_(coreCookie),
        pidfd_(kj::mv(pidfd)),
        registry_(std::move(registry)),
        observer_(kj::heap<kj::UnixEventPort::FdObserver>(
            port, pidfd_.get(), kj::UnixEventPort::FdObserver::OBSERVE_READ)),
        ended_(nullptr) {
    registry_->owned[pid_] = this;
    // After registering: it may have ended, and reap() takes the entry out.
    ended_ = awaitEnd().fork();
  }
  ~ChildImpl() noexcept(false) {
    auto it = registry_->owned.find(pid_);
    // The number may have a new owner: after reap() it is free.
    if (it != registry_->owned.end() && it->second == this) registry_->owned.erase(it);
  }

  pid_t pid() const override { return pid_; }
  uint64_t coreCookie() const override { return coreCookie_; }

  bool signal(int signo) override {
    if (exited() != nullptr) return false;
    if (pidfd_send_signal(pidfd_.get(), signo, nullptr, 0) == 0) return true;
    int error = errno;
    if (error == ESRCH) return false;
    KJ_FAIL_SYSCALL("pidfd_send_signal", error, pid_, signo);
  }

  kj::Promise<ExitStatus> onExit() override { return ended_.addBranch(); }

  kj::Maybe<ExitStatus> exited() const override {
    reap();
    return status_;
  }

  // Takes the status if it has ended. Also called by reapStrays.
  void reap() const {
    if (status_ != nullptr) return;
    Waited waited = waitPidfd(pidfd_.get(), 0);
    KJ_REQUIRE(waited.ours, "someone else reaped a child", pid_);
    KJ_IF_MAYBE (status, waited.status) {
      status_ = *status;
      auto it = registry_->owned.find(pid_);
      if (it != registry_->owned.end() && it->second == this) registry_->owned.erase(it);
    }
  }

 private:
  kj::Promise<ExitStatus> awaitEnd() {
    // Edge-triggered: an end from before the observer was armed never fires, so
    // look first.
    if (pollReadable(pidfd_.get())) {
      reap();
      KJ_IF_MAYBE (status, status_) return *status;
    }
    return observer_->whenBecomesReadable().then([this]() { return awaitEnd(); });
  }

  pid_t pid_;
  uint64_t coreCookie_;
  kj::AutoCloseFd pidfd_;
  std::shared_ptr<ChildRegistry> registry_;
  mutable kj::Maybe<ExitStatus> status_;
  // Below pidfd_: it must go first (EPOLL_CTL_DEL of a closed fd aborts).
  kj::Own<kj::UnixEventPort::FdObserver> observer_;
  kj::ForkedPromise<ExitStatus> ended_;
};

namespace {

std::vector<char*> cStrings(const std::vector<std::string>& strings) {
  std::vector<char*> result;
  result.reserve(strings.size() + 1);
  for (auto& s : strings) {
    KJ_REQUIRE(s.find('\0') == std::string::npos, "NUL inside an argument");
    result.push_back(const_cast<char*>(s.c_str()));
  }
  result.push_back(nullptr);
  return result;
}

// What the child does between clone and exec, in our memory and while we wait:
// system calls alone.
struct Birth {
  const char* program;
  const char* cwd;
  char* const* argv;
  char* const* env;
  int (*moves)[2];  // from, to
  size_t count;
  const bool* named;  // kMaxTarget + 1 of them
  int null, limit;    // no descriptor of use is `limit` or above
  bool ownCore;
  unsigned long coreCookie = 0;
  int error = 0;
};

__attribute__((no_sanitize_address)) int beBorn(void* argument) {
  auto& birth = *static_cast<Birth*>(argument);
  // A table of its own, of the few below: a copy of all of ours grows with the
  // sandboxes (4 ms at 1,000).
  bool good = close_range(static_cast<unsigned>(birth.limit), ~0u, CLOSE_RANGE_UNSHARE) == 0;
  good = good && setsid() >= 0 && ::chdir(birth.cwd) == 0;
  for (size_t i = 0; good && i < birth.count; ++i) {
    good = ::dup2(birth.moves[i][0], birth.moves[i][1]) >= 0;
  }
  // All of ours are CLOEXEC anyway; this also covers what a library forgot.
  for (int fd = 0; good && fd <= kMaxTarget; ++fd) {
    if (birth.named[fd]) continue;
    if (fd <= STDERR_FILENO) {
      good = ::dup2(birth.null, fd) >= 0;
      continue;
    }
    int last = fd;
    while (last < kMaxTarget && !birth.named[last + 1]) ++last;
    good = close_range(static_cast<unsigned>(fd), static_cast<unsigned>(last), 0) == 0;
    fd = last;
  }
  good = good && close_range(kMaxTarget + 1, ~0u, 0) == 0;
  if (good && birth.ownCore) {
    errno = jailer::takeCoreCookie(birth.coreCookie);
    good = errno == 0;
  }
  if (good) {
    // An ignored SIGPIPE and a blocked signal survive exec.
    struct sigaction plain = {};
    plain.sa_handler = SIG_DFL;
    for (int signal = 1; signal < NSIG; ++signal) sigaction(signal, &plain, nullptr);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    execve(birth.program, birth.argv, birth.env);
  }
  birth.error = errno;
  _exit(127);
}

}  // namespace

// Where descriptors pass on their way into a child: numbers just above all
// targets, taken while few are in use.
class SpawnWindow {
 public:
  static constexpr size_t kMost = 32;

  SpawnWindow() {
    int null;
    KJ_SYSCALL(null = open("/dev/null", O_RDWR | O_CLOEXEC));
    kj::AutoCloseFd owned(null);
    for (auto& place : places_) {
      int fd;
      KJ_SYSCALL(fd = fcntl(null, F_DUPFD_CLOEXEC, kMaxTarget + 1));
      place = kj::AutoCloseFd(fd);
      limit_ = std::max(limit_, fd + 1);
    }
    stack_ = mmap(nullptr, kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK,
                  -1, 0);
    KJ_REQUIRE(stack_ != MAP_FAILED, "no memory for a stack");
  }
  ~SpawnWindow() { munmap(stack_, kStack); }
  KJ_DISALLOW_COPY(SpawnWindow);

  struct Born {
    pid_t pid;
    uint64_t coreCookie;
  };
  Born spawn(const SpawnSpec& spec) {
    KJ_REQUIRE(spec.fds.size() < kMost, "too many descriptors");
    auto argv = cStrings(spec.argv);
    auto env = cStrings(spec.env);
    bool named[kMaxTarget + 1] = {};
    int moves[kMost][2];
    size_t count = 0;
    KJ_DEFER(while (count > 0) dup3(null(), moves[--count][0], O_CLOEXEC));
    for (auto& wanted : spec.fds) {
      int source = wanted.first, target = wanted.second;
      KJ_REQUIRE(target >= 0 && target <= kMaxTarget, "target fd out of range", target);
      KJ_REQUIRE(!named[target], "target fd named twice", target);
      named[target] = true;
      KJ_SYSCALL(dup3(source, places_[count].get(), O_CLOEXEC), source, target);
      moves[count][0] = places_[count].get();
      moves[count++][1] = target;
    }
    Birth birth{spec.program.c_str(),
                spec.cwd.c_str(),
                argv.data(),
                env.data(),
                moves,
                count,
                named,
                null(),
                limit_,
                spec.ownCore};
    // No handler of ours runs in the child, whose memory is ours.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pid_t pid = clone(beBorn, static_cast<char*>(stack_) + kStack,
                      CLONE_VM | CLONE_VFORK | CLONE_FILES | SIGCHLD, &birth);
    int error = errno;
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (pid < 0) KJ_FAIL_SYSCALL("clone", error, spec.program);
    if (birth.error != 0) {
      waitpid(pid, nullptr, 0);
      KJ_FAIL_SYSCALL("spawn", birth.error, spec.program);
    }
    return {pid, birth.coreCookie};
  }

 private:
  static constexpr size_t kStack = 64 * 1024;

  int null() const { return places_[kMost - 1].get(); }

  kj::AutoCloseFd places_[kMost];  // the last is never used
  int limit_ = 0;
  void* stack_;
};

Children::Children(kj::UnixEventPort& port)
    : port_(port),
      registry_(std::make_shared<ChildRegistry>()),
      window_(std::make_unique<SpawnWindow>()) {}
Children::~Children() noexcept(false) = default;

kj::Own<Child> Children::spawn(const SpawnSpec& spec) {
  KJ_REQUIRE(!spec.program.empty() && spec.program[0] == '/', "program must be an absolute path");
  KJ_REQUIRE(!spec.argv.empty(), "argv is empty");
  auto born = window_->spawn(spec);
  pid_t pid = born.pid;
  // Ours and not waited for, so the number is its: it must not run unowned.
  KJ_ON_SCOPE_FAILURE({
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, __WALL);
  });
  int pidfd;
  KJ_SYSCALL(pidfd = pidfd_open(pid, 0), pid);
  return kj::heap<ChildImpl>(port_, registry_, pid, kj::AutoCloseFd(pidfd), born.coreCookie);
}

kj::Maybe<kj::Own<Child>> Children::adopt(pid_t pid) {
  if (pid <= 0) return nullptr;
  auto it = registry_->owned.find(pid);
  if (it != registry_->owned.end()) {
    // A zombie keeps its number, so an owned pid is that Child's process.
    return nullptr;
  }
  int fd = pidfd_open(pid, 0);
  if (fd < 0) {
    int error = errno;
    if (error == ESRCH || error == EINVAL) return nullptr;
    KJ_FAIL_SYSCALL("pidfd_open", error, pid);
  }
  kj::AutoCloseFd pidfd(fd);
  if (!waitPidfd(pidfd.get(), WNOWAIT).ours) return nullptr;
  kj::Own<Child> child = kj::heap<ChildImpl>(port_, registry_, pid, kj::mv(pidfd));
  return kj::mv(child);
}

size_t Children::reapStrays() {
  if (registry_->holds > 0) return 0;
  size_t reaped = 0;
  for (size_t turn = 0; turn < kMostStraysPerCall; ++turn) {
    siginfo_t info{};
    if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT | __WALL) < 0) {
      int error = errno;
      if (error == ECHILD) return reaped;
      KJ_FAIL_SYSCALL("waitid(P_ALL)", error);
    }
    if (info.si_pid == 0) return reaped;
    // WNOWAIT always shows the same zombie first: a Child's is taken by its
    // Child (which keeps the status for its promise), or we would see no other.
    auto it = registry_->owned.find(info.si_pid);
    if (it != registry_->owned.end()) {
      it->second->reap();
      continue;
    }
    siginfo_t gone{};
    KJ_SYSCALL(waitid(P_PID, static_cast<id_t>(info.si_pid), &gone, WEXITED | WNOHANG | __WALL));
    ++reaped;
  }
  return kMostStraysPerCall;
}

Children::StrayHold::StrayHold(std::shared_ptr<ChildRegistry> registry)
    : registry_(std::move(registry)) {
  ++registry_->holds;
}
Children::StrayHold::~StrayHold() {
  if (registry_) --registry_->holds;
}
Children::StrayHold Children::holdStrays() {
  return StrayHold(registry_);
}

void becomeSubreaper() {
  KJ_SYSCALL(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0));
}

}  // namespace cordon::broker
