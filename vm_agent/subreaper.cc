#include "vm_agent/subreaper.h"

#include <fcntl.h>
#include <kj/debug.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <csignal>
#include <optional>

#include "ipc/fdpass.h"
#include "vm_agent/descendants.h"
#include "vm_agent/tracers.h"

namespace cordon::agent {

namespace {

struct Order {
  enum Kind : uint32_t { kSignal = 1, kKill = 2 } kind;
  int32_t signal;
};

// ---------------------------------------------------------------------------
// In the subreaper.

class Subreaper {
 public:
  Subreaper(int socket, pid_t main) : socket_(socket), main_(main) {
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    signals_ = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
    endWatch_.emplace(main, monotonicUs());
    endFd_ = endWatch_->takeFd();
  }

  [[noreturn]] void run() {
    for (;;) {
      bool childless = reap();
      if (childless && main_ == 0) _exit(0);
      uint64_t now = monotonicUs();
      if (killing_) killAll(now);
      if (endWatch_) endWatch_->check(now);
      int endFd = -1;
      KJ_IF_MAYBE (fd, endFd_) endFd = *fd;
      pollfd fds[] = {
          {ordersOpen_ ? socket_ : -1, POLLIN, 0}, {signals_, POLLIN, 0}, {endFd, POLLIN, 0}};
      poll(fds, 3, timeoutMs(now));
      if (fds[2].revents != 0) {
        endWatch_->ended(monotonicUs());
        endFd_ = nullptr;
      }
      signalfd_siginfo info;
      while (read(signals_, &info, sizeof(info)) > 0) {
      }
      if (fds[0].revents != 0) takeOrders();
    }
  }

 private:
  // True when there is no child at all.
  bool reap() {
    bool mainEnded = false;
    MainEnd end;
    bool childless = false;
    for (;;) {
      int status = 0;
      rusage usage = {};
      pid_t pid = wait4(-1, &status, WNOHANG, &usage);
      if (pid < 0 && errno == EINTR) continue;
      if (pid <= 0) {
        childless = pid < 0;
        break;
      }
      if (WIFSTOPPED(status)) {
        detachStopped(pid, status);
        continue;
      }
      if (pid == main_) {
        mainEnded = true;
        main_ = 0;
        endWatch_.reset();
        endFd_ = nullptr;
        end.status = status;
        end.usage = usage;
      }
    }
    if (mainEnded) {
      if (!childless) end.leftRunning = static_cast<uint32_t>(signalDescendants(0, {}));
      // The only report: it fits, and if the agent is gone nobody needs it.
      send(socket_, &end, sizeof(end), MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    return childless;
  }

  void killAll(uint64_t now) {
    if (killBegan_ == 0) killBegan_ = now;
    signalDescendants(SIGKILL, {}, now - killBegan_ > kPatientKillUs);
  }

  int timeoutMs(uint64_t now) const {
    if (killing_) return 1;
    uint64_t next = endWatch_ ? endWatch_->nextCheck() : UINT64_MAX;
    if (next == UINT64_MAX) return -1;
    return next <= now ? 0 : static_cast<int>((next - now) / 1000 + 1);
  }

  void takeOrders() {
    for (;;) {
      Order order = {};
      ssize_t got = recv(socket_, &order, sizeof(order), MSG_DONTWAIT);
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
      if (got != sizeof(order)) {
        // The agent is gone, and nothing may outlive it.
        killing_ = true;
        ordersOpen_ = false;
        return;
      }
      if (order.kind == Order::kKill) killing_ = true;
      if (order.kind == Order::kSignal && main_ > 0) kill(main_, order.signal);
    }
  }

  int socket_;
  int signals_;
  pid_t main_;
  std::optional<EndWatch> endWatch_;  // while there is a main
  kj::Maybe<kj::AutoCloseFd> endFd_;
  bool killing_ = false;
  uint64_t killBegan_ = 0;
  bool ordersOpen_ = true;
};

[[noreturn]] void beSubreaper(int socket, const ChildPlan& plan) {
  // Before main exists, so that nothing of it can ever fall past us.
  prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
  prctl(PR_SET_NAME, "vm-agent-exec", 0, 0, 0);
  pid_t main = fork();
  if (main == 0) becomeProgram(plan);
  if (main < 0) {
    ChildFailure failure = {static_cast<uint32_t>(guest::FailStep::FORK), errno};
    ssize_t ignored = write(plan.failureFd, &failure, sizeof(failure));
    static_cast<void>(ignored);
    _exit(127);
  }
  // The agent must see EOF on the failure pipe when main execs, and programs
  // EOF on theirs: keep the socket alone.
  constexpr int kSocket = 3;
  if (socket != kSocket) dup2(socket, kSocket);
  syscall(SYS_close_range, kSocket + 1u, UINT_MAX, 0);
  Subreaper(kSocket, main).run();
}

// ---------------------------------------------------------------------------
// In the agent.

class SubreaperProcesses final : public Processes {
 public:
  SubreaperProcesses(Loop& loop, Subreapers& registry, OnMainEnd onMainEnd)
      : loop_(loop), registry_(registry), onMainEnd_(std::move(onMainEnd)) {}

  SpawnFailure spawn(const ChildPlan& plan) override {
    int fds[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0) {
      return {guest::FailStep::FORK, errno};
    }
    kj::AutoCloseFd ours(fds[0]), theirs(fds[1]);
    pid_t pid = fork();
    if (pid == 0) beSubreaper(theirs, plan);
    if (pid < 0) return {guest::FailStep::FORK, errno};
    reaper_ = pid;
    registry_.pids.insert(pid);
    socket_.emplace(loop_, kj::mv(ours), [this](uint32_t) { receive(); });
    socket_->watch(EPOLLIN);
    return {};
  }

  void signalMain(int signal) override { order({Order::kSignal, signal}); }

  // One walk in any case, without waiting.
  bool killPass(uint64_t) override {
    if (reaper_ > 0) {
      // Once: it goes on by itself until nothing is left.
      if (!ordered_) ordered_ = order({Order::kKill, 0});
      return false;
    }
    if (!lost_) return true;
    std::vector<pid_t> others(registry_.pids.begin(), registry_.pids.end());
    lost_ = signalDescendants(SIGKILL, others) > 0;
    return !lost_;
  }

  bool reaped(pid_t pid, int status, const rusage&) override {
    if (pid != reaper_) return false;
    receive();
    reaper_ = 0;
    registry_.pids.erase(pid);
    // It only leaves by itself when it has no child left.
    lost_ = !(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    if (lost_) killPass(0);
    if (!ended_) {
      // Nobody saw main end; it is being killed, so that is what is said.
      MainEnd end = {};
      end.status = WIFEXITED(status) && WEXITSTATUS(status) == 127 ? status : SIGKILL;
      finish(end);
    }
    return true;
  }

  bool mustStay() const override { return reaper_ > 0 || lost_; }

  bool wantsKill() const override { return lost_; }

 private:
  bool order(Order what) {
    if (!socket_ || !socket_->isOpen()) return false;
    return send(socket_->get(), &what, sizeof(what), MSG_DONTWAIT | MSG_NOSIGNAL) == sizeof(what);
  }

  void receive() {
    if (!socket_ || !socket_->isOpen()) return;
    MainEnd end;
    ssize_t got = recv(socket_->get(), &end, sizeof(end), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got != sizeof(end)) {
      // Its own end follows from the reaper of the agent.
      socket_->watch(0);
      return;
    }
    finish(end);
  }

  void finish(const MainEnd& end) {
    if (ended_) return;
    ended_ = true;
    onMainEnd_(end);
  }

  Loop& loop_;
  Subreapers& registry_;
  OnMainEnd onMainEnd_;
  std::optional<WatchedFd> socket_;
  pid_t reaper_ = 0;
  bool ordered_ = false;
  bool ended_ = false;
  bool lost_ = false;
};

}  // namespace

std::unique_ptr<Processes> makeSubreaperProcesses(Loop& loop, Subreapers& registry,
                                                  Processes::OnMainEnd onMainEnd) {
  return std::make_unique<SubreaperProcesses>(loop, registry, std::move(onMainEnd));
}

}  // namespace cordon::agent
