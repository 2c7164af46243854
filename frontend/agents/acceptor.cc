#include "frontend/agents/acceptor.h"

#include <errno.h>
#include <fcntl.h>
#include <kj/debug.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

namespace cordon::agents {
namespace {

// Keys of epoll events; connections count up from kFirstConnection.
constexpr uint64_t kListener = 0, kSignals = 1, kFirstConnection = 2;
// While descriptors or memory are short.
constexpr int kPauseMs = 100;
constexpr int kIdleCheckMs = 30 * 1000;

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
  listening_ = on;
  if (on) {
    watch(epoll_, listener_, EPOLLIN, kListener);
  } else {
    KJ_SYSCALL(epoll_ctl(epoll_, EPOLL_CTL_DEL, listener_, nullptr), "EPOLL_CTL_DEL");
  }
}

int Acceptor::run() {
  for (;;) {
    epoll_event events[64];
    // Without connections nothing can become idle, and nothing wakes us.
    int timeout = !listening_ ? kPauseMs : servers_.anyUser() ? kIdleCheckMs : -1;
    int count;
    KJ_SYSCALL(count = epoll_wait(epoll_, events, 64, timeout), "epoll_wait");
    if (count == 0) {
      listen(true);
      servers_.dropIdle();
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
  servers_.add(peer.uid, kj::mv(connection));
  auto key = next_++;
  watch(epoll_, watched, EPOLLRDHUP, key);
  connections_.emplace(key, Connection{kj::mv(watched), peer.uid});
}

// At most once a second: the log is not a client's to fill.
void Acceptor::warnFull(uint32_t uid) {
  auto now = std::chrono::steady_clock::now();
  if (now - warned_ < std::chrono::seconds(1)) return;
  warned_ = now;
  log_->warn("uid {}: too many connections", uid);
}

}  // namespace cordon::agents
