// The processes of an exec that has a cgroup of its own.
#include <fcntl.h>
#include <kj/debug.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <ctime>
#include <optional>
#include <string>

#include "vm_agent/processes.h"
#include "vm_agent/tracers.h"

namespace cordon::agent {

namespace {

constexpr size_t kMaxListed = 65535;
constexpr size_t kKillBatch = 32;  // descriptors held at once

// clone3's argument (linux/sched.h can't be included beside sched.h).
struct CloneArguments {
  uint64_t flags, pidfd, childTid, parentTid, exitSignal, stack, stackSize, tls, setTid, setTidSize,
      cgroup;
};
constexpr uint64_t kCloneIntoCgroup = 0x200000000;

std::vector<pid_t> parsePids(const std::string& text) {
  std::vector<pid_t> pids;
  const char* at = text.data();
  const char* end = at + text.size();
  while (at < end && pids.size() < kMaxListed) {
    pid_t pid = 0;
    auto [stop, error] = std::from_chars(at, end, pid);
    if (error != std::errc()) break;
    // 0 is a process that our pid namespace can't name.
    if (pid > 0) pids.push_back(pid);
    at = stop + 1;
  }
  std::sort(pids.begin(), pids.end());
  return pids;
}

// What the kernel says of a cgroup that was removed, which only an empty one is.
bool saysRemoved(int error) {
  return error == ENOENT || error == ENODEV;
}

// Nothing with errno set when it can't be read.
std::optional<std::string> readAll(int fd) {
  std::string text;
  char buffer[4096];
  for (;;) {
    ssize_t got = ::read(fd, buffer, sizeof(buffer));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return std::nullopt;
    if (got == 0) return text;
    text.append(buffer, static_cast<size_t>(got));
    if (text.size() > kMaxListed * 8) return text;
  }
}

class LeafProcesses final : public Processes {
 public:
  LeafProcesses(Loop& loop, guest::JoinMode join, std::shared_ptr<Leaf> leaf, OnMainEnd onMainEnd)
      : loop_(loop), join_(join), leaf_(std::move(leaf)), onMainEnd_(std::move(onMainEnd)) {}

  SpawnFailure spawn(const ChildPlan& given) override {
    if (leaf_->broken || leaf_->fds.empty()) return {guest::FailStep::CGROUP, EMFILE};
    auto failure = join_ == guest::JoinMode::CGROUP_V2 ? spawnInto(given) : spawnJoining(given);
    if (failure.error == 0) watchEnd();
    return failure;
  }

  void signalMain(int signal) override {
    // Ours and not waited for: the pid can't be another's.
    if (main_ > 0) kill(main_, signal);
  }

  bool killPass(uint64_t until) override {
    // Main may not have joined its leaf yet.
    signalMain(SIGKILL);
    // Nothing is reaped in between: orphans of what dies here stay zombies of
    // ours and keep their places in the pids limit, so a fork bomb runs dry.
    for (;;) {
      auto pids = list();
      if (!pids) return false;
      if (pids->empty()) return main_ <= 0;
      killListed(*pids);
      uint64_t now = monotonicUs();
      if (killBegan_ == 0) killBegan_ = now;
      if (now - killBegan_ > kPatientKillUs) killTracersOf(*pids);
      if (now >= until) return false;
      timespec dying = {0, 200 * 1000};
      nanosleep(&dying, nullptr);
    }
  }

  bool reaped(pid_t pid, int status, const rusage& usage) override {
    if (pid != main_) return false;
    main_ = 0;
    endFd_.reset();
    endWatch_.reset();
    MainEnd end = {status, usage, 0};
    if (auto pids = list()) end.leftRunning = static_cast<uint32_t>(pids->size());
    onMainEnd_(end);
    return true;
  }

  uint64_t nextCheck() const override { return endWatch_ ? endWatch_->nextCheck() : UINT64_MAX; }
  void check(uint64_t now) override {
    if (endWatch_) endWatch_->check(now);
  }

  // What stays in the leaf is the cgroup's to know, not ours.
  bool mustStay() const override { return false; }

 private:
  SpawnFailure spawnJoining(const ChildPlan& given) {
    std::vector<int> tasks;
    for (size_t i = 1; i < leaf_->fds.size(); ++i) tasks.push_back(leaf_->fds[i]);
    ChildPlan plan = given;
    plan.taskFds = tasks.data();
    plan.taskFdCount = tasks.size();
    // Never vfork: between setresuid and exec the program's user could stop the
    // child, and with it whoever waits for it.
    pid_t pid = fork();
    if (pid == 0) becomeProgram(plan);
    if (pid < 0) return {guest::FailStep::FORK, errno};
    main_ = pid;
    return {};
  }

  SpawnFailure spawnInto(const ChildPlan& plan) {
    CloneArguments arguments = {};
    arguments.flags = kCloneIntoCgroup;
    arguments.exitSignal = SIGCHLD;
    arguments.cgroup = static_cast<uint64_t>(leaf_->fds[0].get());
    long pid = syscall(SYS_clone3, &arguments, sizeof(arguments));
    if (pid == 0) becomeProgram(plan);
    if (pid < 0) {
      // EAGAIN and ENOMEM are about processes, the rest is about the leaf.
      int error = errno;
      bool resource = error == EAGAIN || error == ENOMEM;
      return {resource ? guest::FailStep::FORK : guest::FailStep::CGROUP, error};
    }
    main_ = static_cast<pid_t>(pid);
    return {};
  }

  void watchEnd() {
    endWatch_.emplace(main_, monotonicUs());
    KJ_IF_MAYBE (fd, endWatch_->takeFd()) {
      endFd_.emplace(loop_, kj::mv(*fd), [this](uint32_t) {
        endFd_->watch(0);
        endWatch_->ended(monotonicUs());
      });
      endFd_->watch(EPOLLIN);
    }
  }

  static void killTracersOf(const std::vector<pid_t>& pids) {
    for (size_t i = 0; i < std::min(pids.size(), kKillBatch); ++i) killTracers(pids[i]);
  }

  // The leaf's processes, sorted; none of a leaf that there never was or is no
  // more. Nothing when it can't be read, such as for want of a descriptor.
  std::optional<std::vector<pid_t>> list() const {
    if (leaf_->fds.empty()) return std::vector<pid_t>();
    if (auto text = read()) return parsePids(*text);
    if (saysRemoved(errno)) return std::vector<pid_t>();
    return std::nullopt;
  }

  // Nothing with errno set when it can't be read.
  std::optional<std::string> read() const {
    bool v2 = join_ == guest::JoinMode::CGROUP_V2;
    int raw =
        v2 ? openat(leaf_->fds[0], "cgroup.procs", O_RDONLY | O_CLOEXEC) : reopen(leaf_->fds[0]);
    if (raw >= 0) {
      kj::AutoCloseFd fd(raw);
      auto text = readAll(fd);
      int error = errno;
      fd = nullptr;
      errno = error;
      return text;
    }
    // What v1 keeps of the open file may be of a second ago: better than nothing
    // where there is no /proc, but no answer where only descriptors are short.
    bool shortage = errno == EMFILE || errno == ENFILE || errno == ENOMEM;
    if (v2 || shortage || lseek(leaf_->fds[0], 0, SEEK_SET) != 0) return std::nullopt;
    return readAll(leaf_->fds[0]);
  }

  // v1 answers a second read of the same open file from a list that it keeps
  // for a second; a new open gets a new list. A process may always follow its
  // own /proc/self/fd, dumpable or not.
  static int reopen(int fd) {
    std::string path = "/proc/self/fd/" + std::to_string(fd);
    return open(path.c_str(), O_RDONLY | O_CLOEXEC);
  }

  void killListed(const std::vector<pid_t>& pids) {
    for (size_t from = 0; from < pids.size(); from += kKillBatch) {
      size_t to = std::min(pids.size(), from + kKillBatch);
      std::vector<std::pair<pid_t, kj::AutoCloseFd>> held;
      for (size_t i = from; i < to; ++i) {
        auto fd = static_cast<int>(syscall(SYS_pidfd_open, pids[i], 0));
        if (fd >= 0) held.emplace_back(pids[i], kj::AutoCloseFd(fd));
      }
      // A pid may have been given to somebody else between the list and the
      // pidfd: only what is (still) in the leaf is killed.
      auto again = list();
      if (!again) return;
      for (auto& [pid, fd] : held) {
        if (!std::binary_search(again->begin(), again->end(), pid)) continue;
        syscall(SYS_pidfd_send_signal, fd.get(), SIGKILL, nullptr, 0);
      }
    }
  }

  Loop& loop_;
  guest::JoinMode join_;
  std::shared_ptr<Leaf> leaf_;
  OnMainEnd onMainEnd_;
  pid_t main_ = 0;
  std::optional<EndWatch> endWatch_;  // while there is a main
  std::optional<WatchedFd> endFd_;
  uint64_t killBegan_ = 0;
};

}  // namespace

std::unique_ptr<Processes> makeLeafProcesses(Loop& loop, guest::JoinMode join,
                                             std::shared_ptr<Leaf> leaf,
                                             Processes::OnMainEnd onMainEnd) {
  return std::make_unique<LeafProcesses>(loop, join, std::move(leaf), std::move(onMainEnd));
}

}  // namespace cordon::agent
