// One of a program's output pipes, from the agent's end.
#pragma once
#include <kj/io.h>

#include <cstdint>
#include <optional>

#include "ipc/guest.capnp.h"
#include "vm_agent/loop.h"
#include "vm_agent/output.h"
#include "vm_agent/stream.h"

namespace cordon::agent {

class OutputPipe {
 public:
  OutputPipe(Loop& loop, FramePool& pool, uint32_t exec, guest::OutputStream which, uint64_t cap);

  // Makes the pipe; 0 or errno. `writeEnd` is for the child.
  int open(kj::AutoCloseFd& writeEnd, int capacity);
  // Sends what is read to `stream`, from now on.
  void start(Stream& stream);
  // The stream has room again.
  void resume();
  // Main has ended: what is readable now is still taken, then it is finished.
  void drain();
  // Nobody wants it any more.
  void abandon();
  bool finished() const { return finished_; }
  void report(guest::StreamTotals::Builder totals) const;

 private:
  enum class Turn : uint8_t { kMore, kWait, kPaused, kDone };
  void pump();
  Turn takeHead();
  bool moveHead(size_t most);
  Turn takePastHead();
  Turn afterRead(ssize_t got);
  size_t limited(size_t bytes) const;
  void finish();
  void sendTail();

  Loop& loop_;
  FramePool& pool_;
  uint32_t exec_;
  guest::OutputStream which_;
  OutputAccount account_;
  std::optional<WatchedFd> pipe_;
  Stream* stream_ = nullptr;
  bool finished_ = false;
  bool draining_ = false;
  uint64_t drainLeft_ = 0;
  uint64_t left_ = 0;
};

}  // namespace cordon::agent
