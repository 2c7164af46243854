#include "frontend/agents/acceptor.h"

#include <errno.h>
#include <fcntl.h>
#include <kj/debug.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

namespace cordon::agents {
namespace {

// Keys of epoll events; connections count up from kFirstConnection.
constexpr uint64_t kListener = 0, kSignals = 1, kFirstConnection = 2;
// While descriptors or memory are short.
constexpr auto kPause = std::chrono::milliseconds(100);

kj::AutoCloseFd makeEpoll() {
  int fd;
  KJ_SYSCALL(fd = epoll_create1(EPOLL_CLOEXEC), "epoll_create1");
  return kj::AutoCloseFd(fd);
}

void watch(int epoll, int fd, uint32_t events, uint64_t key) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = key;
  KJ_SYSCALL(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event), "EPOLL_CTL_ADD");
}

}  // namespace

Acceptor::Acceptor(Servers& servers, kj::AutoCloseFd listener, kj::AutoCloseFd signals,
                   std::shared_ptr<spdlog::logger> log)
    : servers_(servers),
      listener_(kj::mv(listener)),
      signals_(kj::mv(signals)),
      epoll_(makeEpoll()),
      log_(std::move(log)),
      next_(kFirstConnection) {
  int domain = 0;
  socklen_t size = sizeof domain;
  KJ_SYSCALL(getsockopt(listener_, SOL_SOCKET, SO_DOMAIN, &domain, &size), "SO_DOMAIN");
  KJ_REQUIRE(domain == AF_UNIX, "clients are known by uid: only unix sockets are served");
  watch(epoll_, signals_, EPOLLIN, kSignals);
  listen(true);
}

void Acceptor::listen(bool on) {
  if (on == listening_) return;
  if (on) {
    watch(epoll_, listener_, EPOLLIN, kListener);
  } else {
    KJ_SYSCALL(epoll_ctl(epoll_, EPOLL_CTL_DEL, listener_, nullptr), "EPOLL_CTL_DEL");
    resumeAt_ = Clock::now() + kPause;
  }
  listening_ = on;
}

int Acceptor::run() {
  for (;;) {
    epoll_event events[64];
    int count;
    KJ_SYSCALL(count = epoll_wait(epoll_, events, 64, timeoutMs()), "epoll_wait");
    // By the clock: a client that keeps coming must not put these off.
    auto now = Clock::now();
    if (!listening_ && now >= resumeAt_) listen(true);
    if (now >= idleCheckAt_) {
      servers_.dropIdle();
      idleCheckAt_ = now + servers_.idleCheck();
    }
    for (int i = 0; i < count; ++i) {
      auto key = events[i].data.u64;
      if (key == kSignals) return takeSignal();
      if (key == kListener) {
        acceptAll();
      } else if (auto found = connections_.find(key); found != connections_.end()) {
        servers_.ended(found->second.uid);
        connections_.erase(found);
      }
    }
  }
}

// Without a user nothing can become idle, and nothing wakes us.
int Acceptor::timeoutMs() const {
  auto next = Clock::time_point::max();
  if (!listening_) next = resumeAt_;
  if (servers_.anyUser()) next = std::min(next, idleCheckAt_);
  if (next == Clock::time_point::max()) return -1;
  auto left = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 60 * 1000));
}

int Acceptor::takeSignal() {
  signalfd_siginfo info{};
  ssize_t n;
  KJ_SYSCALL(n = read(signals_, &info, sizeof info), "reading the signal");
  return static_cast<int>(info.ssi_signo);
}

void Acceptor::acceptAll() {
  for (;;) {
    int fd = accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
    if (fd < 0 && errno == EAGAIN) return;
    if (fd < 0) {
      log_->warn("accepting pauses: {}", strerror(errno));
      listen(false);
      return;
    }
    auto failure = kj::runCatchingExceptions([&] { accept(kj::AutoCloseFd(fd)); });
    KJ_IF_MAYBE (exception, failure) {
      log_->error("a connection was dropped: {}", exception->getDescription().cStr());
    }
  }
}

void Acceptor::accept(kj::AutoCloseFd connection) {
  ucred peer{};
  socklen_t size = sizeof peer;
  KJ_SYSCALL(getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &size), "SO_PEERCRED");
  if (!servers_.admits(peer.uid)) {
    warnFull(peer.uid);
    return;
  }
  int copy;
  KJ_SYSCALL(copy = fcntl(connection, F_DUPFD_CLOEXEC, 3), "duplicating a connection");
  kj::AutoCloseFd watched(copy);
  // Watched before it is counted: what can't be watched would count for ever.
  auto key = next_++;
  watch(epoll_, watched, EPOLLRDHUP, key);
  connections_.emplace(key, Connection{kj::mv(watched), peer.uid});
  KJ_ON_SCOPE_FAILURE(connections_.erase(key));
  servers_.add(peer.uid, kj::mv(connection));
}

// At most once a second: the log is not a client's to fill.
void Acceptor::warnFull(uint32_t uid) {
  auto now = Clock::now();
  if (now - warned_ < std::chrono::seconds(1)) return;
  warned_ = now;
  log_->warn("uid {}: too many connections", uid);
}

}  // namespace cordon::agents
