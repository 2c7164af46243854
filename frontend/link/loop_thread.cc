#include "frontend/link/loop_thread.h"

#include <kj/debug.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>
#include <future>

namespace cordon::link {
namespace {

kj::AutoCloseFd makeEventFd() {
  int fd;
  KJ_SYSCALL(fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd");
  return kj::AutoCloseFd(fd);
}

}  // namespace

LoopThread::LoopThread(const char* name) : wake_(makeEventFd()) {
  std::promise<void> ready;
  thread_ = std::thread([this, &ready] {
    auto io = kj::setupAsyncIo();
    io_ = &io;
    ready.set_value();
    run();
  });
  pthread_setname_np(thread_.native_handle(), name);
  ready.get_future().wait();
}

LoopThread::~LoopThread() noexcept {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  uint64_t one = 1;
  // Cannot fail but by a full counter, which is readable all the same.
  (void)!write(wake_, &one, sizeof one);
  thread_.join();
}

void LoopThread::post(kj::Function<void()> work) {
  bool first;
  {
    std::lock_guard lock(mutex_);
    first = queue_.empty();
    queue_.push_back(kj::mv(work));
  }
  if (!first) return;  // whoever made it non-empty has woken the loop
  uint64_t one = 1;
  (void)!write(wake_, &one, sizeof one);
}

void LoopThread::call(kj::Function<void()> work) {
  std::promise<kj::Maybe<kj::Exception>> done;
  post([&] { done.set_value(kj::runCatchingExceptions([&] { work(); })); });
  auto failure = done.get_future().get();
  KJ_IF_MAYBE (exception, failure) kj::throwFatalException(kj::mv(*exception));
}

void LoopThread::run() {
  // Declared before the observer's end and after the descriptor's beginning:
  // an observer must go before its fd closes.
  kj::UnixEventPort::FdObserver observer(io_->unixEventPort, wake_,
                                         kj::UnixEventPort::FdObserver::OBSERVE_READ);
  for (;;) {
    // Edge-triggered: ask first, then drain, so that no wake is lost.
    auto readable = observer.whenBecomesReadable();
    if (!drain()) return;
    readable.wait(io_->waitScope);
  }
}

bool LoopThread::drain() {
  for (;;) {
    uint64_t count;
    (void)!read(wake_, &count, sizeof count);
    std::deque<kj::Function<void()>> batch;
    bool stop;
    {
      std::lock_guard lock(mutex_);
      batch.swap(queue_);
      stop = stopping_;
    }
    if (batch.empty()) return !stop;
    for (auto& work : batch) {
      // One item's fault must not end everybody else's work.
      KJ_IF_MAYBE (exception, kj::runCatchingExceptions([&] { work(); })) {
        KJ_LOG(ERROR, "work on the loop failed", *exception);
      }
    }
  }
}

}  // namespace cordon::link
