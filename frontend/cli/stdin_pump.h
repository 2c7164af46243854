// Feeds a program's standard input from a thread of its own, so that a slow
// service holds back this input and nothing else.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "frontend/cli/fd.h"

namespace cordon::client {

class StdinPump {
 public:
  // Sends `bytes`, or what can be read from `fd` (borrowed; -1: none), in
  // chunks of at most 64 KiB, then calls `finish`. `send` may block; false from
  // it ends the pump. With neither source there is no thread.
  StdinPump(std::optional<std::string> bytes, int fd, std::function<bool(std::string)> send,
            std::function<void()> finish);
  // As stop().
  ~StdinPump();
  StdinPump(const StdinPump&) = delete;
  StdinPump& operator=(const StdinPump&) = delete;

  // Ends the thread, also one that waits for input; a `send` that blocks must
  // be ended by its owner first.
  void stop();

 private:
  void pumpBytes(const std::string& bytes);
  void pumpFd(int fd);

  std::function<bool(std::string)> send;
  std::function<void()> finish;
  cli::Pipe wake;  // its write end closed: stop
  std::thread thread;
};

}  // namespace cordon::client
