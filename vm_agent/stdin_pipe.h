// A program's standard input, fed within a window of credit.
#pragma once
#include <kj/array.h>
#include <kj/io.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "vm_agent/loop.h"

namespace cordon::agent {

class StdinPipe {
 public:
  // `grant` is told how many more bytes the host may send.
  StdinPipe(Loop& loop, std::function<void(uint32_t)> grant);

  // Makes the pipe; 0 or errno. `readEnd` is for the child.
  int open(kj::AutoCloseFd& readEnd);
  // False: more than the credit, a protocol error.
  bool take(kj::ArrayPtr<const kj::byte> bytes);
  // End of input, after what was taken is delivered.
  void end();
  void abandon();

 private:
  void flush();
  void discard();
  void grant(size_t bytes);

  Loop& loop_;
  std::function<void(uint32_t)> grant_;
  std::optional<WatchedFd> pipe_;
  std::vector<kj::byte> pending_;
  size_t sent_ = 0;      // of pending_
  size_t credit_ = 0;    // the host may send so many more
  size_t granting_ = 0;  // delivered, not yet granted
  bool ending_ = false;
  bool gone_ = false;  // nobody reads: the rest is thrown away
};

}  // namespace cordon::agent
