#include "broker/children.h"

#include <errno.h>
#include <fcntl.h>
#include <kj/debug.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <map>

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
            kj::AutoCloseFd pidfd)
      : pid_(pid),
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
  kj::AutoCloseFd pidfd_;
  std::shared_ptr<ChildRegistry> registry_;
  mutable kj::Maybe<ExitStatus> status_;
  // Below pidfd_: it must go first (EPOLL_CTL_DEL of a closed fd aborts).
  kj::Own<kj::UnixEventPort::FdObserver> observer_;
  kj::ForkedPromise<ExitStatus> ended_;
};

namespace {

class FileActions {
 public:
  FileActions() { check(posix_spawn_file_actions_init(&actions_), "init"); }
  ~FileActions() { posix_spawn_file_actions_destroy(&actions_); }
  KJ_DISALLOW_COPY(FileActions);

  void chdir(const char* path) {
    check(posix_spawn_file_actions_addchdir_np(&actions_, path), "chdir");
  }
  void devNull(int fd) {
    check(posix_spawn_file_actions_addopen(&actions_, fd, "/dev/null", O_RDWR, 0), "open");
  }
  void dup2(int from, int to) {
    check(posix_spawn_file_actions_adddup2(&actions_, from, to), "dup2");
  }
  void close(int fd) { check(posix_spawn_file_actions_addclose(&actions_, fd), "close"); }
  void closeFrom(int fd) {
    check(posix_spawn_file_actions_addclosefrom_np(&actions_, fd), "closefrom");
  }
  const posix_spawn_file_actions_t* get() const { return &actions_; }

 private:
  static void check(int error, const char* what) {
    if (error != 0) KJ_FAIL_SYSCALL("posix_spawn_file_actions", error, what);
  }
  posix_spawn_file_actions_t actions_;
};

class SpawnAttributes {
 public:
  SpawnAttributes() {
    check(posix_spawnattr_init(&attributes_));
    sigset_t all, none;
    sigfillset(&all);
    sigemptyset(&none);
    // An ignored SIGPIPE and a blocked signal survive exec.
    check(posix_spawnattr_setsigdefault(&attributes_, &all));
    check(posix_spawnattr_setsigmask(&attributes_, &none));
    check(posix_spawnattr_setflags(
        &attributes_, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK));
  }
  ~SpawnAttributes() { posix_spawnattr_destroy(&attributes_); }
  KJ_DISALLOW_COPY(SpawnAttributes);
  const posix_spawnattr_t* get() const { return &attributes_; }

 private:
  static void check(int error) {
    if (error != 0) KJ_FAIL_SYSCALL("posix_spawnattr", error);
  }
  posix_spawnattr_t attributes_;
};

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

// Descriptors as `spec` wants them. The sources are first duplicated above all
// targets, so that no dup2 overwrites a source that is still needed; `held`
// keeps the duplicates until the child has them.
void addDescriptors(FileActions& actions, const SpawnSpec& spec,
                    std::vector<kj::AutoCloseFd>& held) {
  std::vector<bool> named(kMaxTarget + 1, false);
  int top = 2;
  for (auto& fd : spec.fds) {
    int target = fd.second;
    KJ_REQUIRE(target >= 0 && target <= kMaxTarget, "target fd out of range", target);
    KJ_REQUIRE(!named[static_cast<size_t>(target)], "target fd named twice", target);
    named[static_cast<size_t>(target)] = true;
    top = std::max(top, target);
  }
  for (auto& fd : spec.fds) {
    int high;
    KJ_SYSCALL(high = fcntl(fd.first, F_DUPFD_CLOEXEC, top + 1), fd.first, fd.second);
    held.emplace_back(high);
    actions.dup2(high, fd.second);
  }
  for (int fd = 0; fd <= top; ++fd) {
    if (named[static_cast<size_t>(fd)]) continue;
    if (fd <= 2) {
      actions.devNull(fd);
    } else {
      actions.close(fd);
    }
  }
  // All of ours are CLOEXEC anyway; this also covers what a library forgot.
  actions.closeFrom(top + 1);
}

}  // namespace

Children::Children(kj::UnixEventPort& port)
    : port_(port), registry_(std::make_shared<ChildRegistry>()) {}
Children::~Children() noexcept(false) = default;

kj::Own<Child> Children::spawn(const SpawnSpec& spec) {
  KJ_REQUIRE(!spec.program.empty() && spec.program[0] == '/', "program must be an absolute path");
  KJ_REQUIRE(!spec.argv.empty(), "argv is empty");
  auto argv = cStrings(spec.argv);
  auto env = cStrings(spec.env);
  FileActions actions;
  std::vector<kj::AutoCloseFd> held;
  actions.chdir(spec.cwd.c_str());
  addDescriptors(actions, spec, held);
  SpawnAttributes attributes;

  pid_t pid;
  int error = posix_spawn(&pid, spec.program.c_str(), actions.get(), attributes.get(), argv.data(),
                          env.data());
  if (error != 0) KJ_FAIL_SYSCALL("posix_spawn", error, spec.program);
  // Ours and not waited for, so the number is its: it must not run unowned.
  KJ_ON_SCOPE_FAILURE({
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, __WALL);
  });
  int pidfd;
  KJ_SYSCALL(pidfd = pidfd_open(pid, 0), pid);
  return kj::heap<ChildImpl>(port_, registry_, pid, kj::AutoCloseFd(pidfd));
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
