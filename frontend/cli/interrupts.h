// SIGINT, SIGTERM and SIGHUP as a request to stop.
#pragma once
#include <atomic>
#include <csignal>
#include <stop_token>
#include <thread>

#include "frontend/cli/fd.h"

namespace cordon::cli {

// While it lives: the first of these signals requests a stop, the second one
// ends this process at once. A signal that is ignored stays so. To be made
// before any other thread, since it blocks the signals in the calling thread.
class Interrupts {
 public:
  // Throws std::system_error, and then nothing is blocked.
  explicit Interrupts(std::stop_source stop);
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  // The signal that came, or 0.
  int signal() const { return came; }

 private:
  // Blocks signals in the thread that made it, for as long as it lives.
  class Blocked {
   public:
    explicit Blocked(const sigset_t& set) { pthread_sigmask(SIG_BLOCK, &set, &before); }
    ~Blocked() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }
    Blocked(const Blocked&) = delete;
    Blocked& operator=(const Blocked&) = delete;

   private:
    sigset_t before{};
  };

  Interrupts(std::stop_source stop, const sigset_t& wanted);
  void watch();

  std::stop_source stop;
  std::atomic<int> came = 0;
  Blocked blocked;
  Fd signals;
  Pipe wake;  // its write end closed: the thread ends
  std::thread thread;
};

}  // namespace cordon::cli
