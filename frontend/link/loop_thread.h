// A thread with a KJ event loop, and the mailbox through which other threads
// give it work.
//
// gRPC answers on threads of its own and must never block there; KJ objects
// belong to the thread that made them. So everything that touches the broker or
// a sandbox's stream runs on this thread, and a gRPC reaction posts.
#pragma once
#include <kj/async-io.h>
#include <kj/async-unix.h>
#include <kj/function.h>
#include <kj/io.h>

#include <deque>
#include <mutex>
#include <thread>

namespace cordon::link {

class LoopThread {
 public:
  // Starts the thread; `name` is what ps shows (at most 15 bytes).
  explicit LoopThread(const char* name);
  // Stops the loop after the work already posted and joins. Whatever lives on
  // the loop must be gone by then (call() its destruction).
  ~LoopThread() noexcept;
  KJ_DISALLOW_COPY(LoopThread);

  // Any thread. Runs `work` on the loop, in the order posted, outside of every
  // promise continuation. Never blocks. What `work` throws is logged and goes no
  // further: whoever waits for it must be told by the work itself.
  void post(kj::Function<void()> work);

  // Any thread but the loop's. Runs `work` there and waits for it; rethrows
  // what it throws.
  void call(kj::Function<void()> work);

  // The loop thread only.
  kj::AsyncIoContext& io() { return *io_; }
  kj::Timer& timer() { return io_->provider->getTimer(); }

 private:
  void run();
  bool drain();  // false: stop

  kj::AutoCloseFd wake_;  // eventfd, level of "queue_ is not empty"
  std::mutex mutex_;
  std::deque<kj::Function<void()>> queue_;
  bool stopping_ = false;
  kj::AsyncIoContext* io_ = nullptr;
  std::thread thread_;
};

}  // namespace cordon::link
