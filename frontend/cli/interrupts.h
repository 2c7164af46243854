// SIGINT, SIGTERM and SIGHUP as a request to stop.
#pragma once
#include <atomic>
#include <csignal>
#include <stop_token>
#include <thread>

namespace cordon::cli {

// While it lives: the first of these signals requests a stop, the second one
// ends this process at once. A signal that is ignored stays so. To be made
// before any other thread, since it blocks the signals in the calling thread.
class Interrupts {
 public:
  explicit Interrupts(std::stop_source stop);
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  // The signal that came, or 0.
  int signal() const { return came; }

 private:
  void watch();

  std::stop_source stop;
  sigset_t before{};
  std::atomic<int> came = 0;
  int signals = -1;
  int wake[2] = {-1, -1};
  std::thread thread;
};

}  // namespace cordon::cli
