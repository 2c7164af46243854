// The agent's one event loop: epoll, callbacks, one thread.
#pragma once
#include <kj/io.h>
#include <sys/epoll.h>

#include <cstdint>
#include <functional>

namespace cordon::agent {

// CLOCK_MONOTONIC in microseconds.
uint64_t monotonicUs();

class WatchedFd;

class Loop {
 public:
  Loop();
  // Waits at most timeoutMs (-1: for ever) and calls back for what is ready.
  void dispatch(int timeoutMs);

 private:
  friend class WatchedFd;
  void control(WatchedFd& watched, int fd, uint32_t before, uint32_t after);

  static constexpr int kBatch = 32;
  kj::AutoCloseFd epoll_;
  epoll_event batch_[kBatch];
  int ready_ = 0;
};

// An owned descriptor that the loop may watch. Callbacks must not destroy the
// object that they are called on; closing it is fine.
class WatchedFd {
 public:
  using Callback = std::function<void(uint32_t events)>;

  WatchedFd(Loop& loop, kj::AutoCloseFd fd, Callback callback);
  ~WatchedFd() noexcept(false) { close(); }
  KJ_DISALLOW_COPY(WatchedFd);

  // Watch for these events (EPOLLIN, EPOLLOUT); 0 takes it out of the loop, so
  // that not even a hang-up is reported.
  void watch(uint32_t events);
  void close();
  int get() const { return fd_.get(); }
  bool isOpen() const { return fd_.get() >= 0; }

 private:
  friend class Loop;
  Loop& loop_;
  kj::AutoCloseFd fd_;
  Callback callback_;
  uint32_t events_ = 0;
};

}  // namespace cordon::agent
