// The listener of an explained exec (seccomp_unotify(2)): a thread answers each
// call that the kernel asks about with the errno of the profile, and counts it.
//
// It came from inside a sandbox, so who sent it may keep a copy and take
// notifications away from under us: receiving may then wait for ever. That is
// why there is a thread, and why stop() interrupts it by a signal. The
// descriptor is closed with the exec: what still runs then gets ENOSYS.
#pragma once
#include <kj/async-unix.h>
#include <kj/async.h>
#include <kj/io.h>
#include <kj/timer.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "frontend/agents/refused_calls.h"

namespace cordon::agents {

// Whether this is a seccomp listener and nothing else, as the kernel says it.
// Never waits, whatever it is.
bool isSeccompListener(int fd);

// How many execs may be explained at once: each has a thread, and a program
// that makes refused calls all the time makes work for it. Any thread.
class ExplainSlots {
 public:
  static constexpr size_t kMost = 64, kMostPerUser = 8;
  // Taken until it is let go of; null: too many.
  std::shared_ptr<void> take(uint32_t uid);

 private:
  struct State {
    std::mutex mutex;
    std::map<uint32_t, size_t> perUser;
    size_t all = 0;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

// Lives on the loop thread.
class Listener {
 public:
  // Calls answered without delay in a burst, and in a second in the long run:
  // past that the program waits for its errno.
  static constexpr double kBurst = 10'000, kPerSecond = 5'000;

  // `fd` isSeccompListener(). `slot` is kept as long as the thread runs.
  Listener(kj::UnixEventPort& port, kj::Timer& timer, kj::AutoCloseFd fd, Program profile,
           std::shared_ptr<void> slot);
  ~Listener() noexcept(false);
  KJ_DISALLOW_COPY(Listener);

  // Closes it. Resolves when the counts are final, or after two seconds. Once.
  kj::Promise<void> stop();
  // The thread has ended: calls() may be asked.
  bool stopped() const;
  const RefusedCalls& calls() const;

 private:
  struct Service;
  kj::Promise<void> nudge(int left);

  kj::Timer& timer_;
  std::shared_ptr<Service> service_;
  kj::UnixEventPort::FdObserver done_;
  std::thread thread_;
};

}  // namespace cordon::agents
