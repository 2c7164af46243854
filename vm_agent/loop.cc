#include "vm_agent/loop.h"

#include <kj/debug.h>

#include <cerrno>
#include <ctime>

namespace cordon::agent {

uint64_t monotonicUs() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000 + static_cast<uint64_t>(now.tv_nsec) / 1000;
}

Loop::Loop() {
  int fd;
  KJ_SYSCALL(fd = epoll_create1(EPOLL_CLOEXEC));
  epoll_ = kj::AutoCloseFd(fd);
}

void Loop::dispatch(int timeoutMs) {
  int n = epoll_wait(epoll_, batch_, kBatch, timeoutMs);
  if (n < 0) {
    int error = errno;
    if (error == EINTR) return;
    KJ_FAIL_SYSCALL("epoll_wait", error);
  }
  ready_ = n;
  for (int i = 0; i < ready_; ++i) {
    auto* watched = static_cast<WatchedFd*>(batch_[i].data.ptr);
    // Null: an earlier callback of this batch took it out of the loop.
    if (watched != nullptr) watched->callback_(batch_[i].events);
  }
  ready_ = 0;
}

void Loop::control(WatchedFd& watched, int fd, uint32_t before, uint32_t after) {
  epoll_event event = {};
  event.events = after;
  event.data.ptr = &watched;
  int op = before == 0 ? EPOLL_CTL_ADD : after == 0 ? EPOLL_CTL_DEL : EPOLL_CTL_MOD;
  KJ_SYSCALL(epoll_ctl(epoll_, op, fd, &event));
  if (after == 0) {
    for (int i = 0; i < ready_; ++i) {
      if (batch_[i].data.ptr == &watched) batch_[i].data.ptr = nullptr;
    }
  }
}

WatchedFd::WatchedFd(Loop& loop, kj::AutoCloseFd fd, Callback callback)
    : loop_(loop), fd_(kj::mv(fd)), callback_(kj::mv(callback)) {}

void WatchedFd::watch(uint32_t events) {
  if (!isOpen() || events == events_) return;
  loop_.control(*this, fd_, events_, events);
  events_ = events;
}

void WatchedFd::close() {
  watch(0);
  fd_ = nullptr;
}

}  // namespace cordon::agent
