// One stream to a frontend: frames in, frames out, back-pressure.
#pragma once
#include <capnp/message.h>
#include <kj/io.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

#include "ipc/framing.h"
#include "ipc/guest.capnp.h"
#include "vm_agent/loop.h"

namespace cordon::agent {

// A word-aligned buffer with bytes waiting to be sent.
struct Frame {
  std::unique_ptr<kj::byte[]> bytes;
  size_t size = 0;
  size_t sent = 0;
  bool pooled = false;
  size_t moved = 0;        // bytes of the stream's own pipe that follow these
  kj::AutoCloseFd passed;  // goes with the first byte

  size_t memory() const;
};

// Buffers of the largest output frame. A few are kept for as long as output
// flows; at rest there are none.
class FramePool {
 public:
  std::unique_ptr<kj::byte[]> take();
  void give(std::unique_ptr<kj::byte[]> buffer);
  void clear() { spare_.clear(); }
  static size_t bufferBytes();

 private:
  std::deque<std::unique_ptr<kj::byte[]>> spare_;
};

// What all streams together hold unsent: past it each keeps only a little.
struct SendBudget {
  static constexpr size_t kTotal = 2 * 1024 * 1024;
  static constexpr size_t kPerStream = 256 * 1024;
  static constexpr size_t kPerStreamWhenShort = 8 * 1024;
  size_t queued = 0;
};

class Stream;

class StreamOwner {
 public:
  // A malformed message is reported by throwing (kj): the stream is closed.
  virtual void onMessage(Stream& stream, guest::HostMessage::Reader message, size_t bytes) = 0;
  // There is room again for output.
  virtual void onDrained(Stream& stream) = 0;

 protected:
  ~StreamOwner() = default;
};

class Stream {
 public:
  Stream(Loop& loop, FramePool& pool, SendBudget& budget, kj::AutoCloseFd fd, StreamOwner& owner);
  ~Stream() noexcept(false);
  KJ_DISALLOW_COPY(Stream);

  // Messages other than output: always queued, they are few and small. `passed`
  // goes with it, if there is one.
  void send(capnp::MessageBuilder& message, kj::AutoCloseFd passed = nullptr);
  // A complete output frame in a buffer of the pool.
  void sendPooled(std::unique_ptr<kj::byte[]> buffer, size_t bytes);
  // Takes up to `most` bytes out of a pipe without copying them; 0: none, since
  // there are none, some are taken already, or it can't be done here. They are
  // sent with the next sendMoved(), which must follow at once.
  size_t moveIn(int pipe, size_t most);
  // Moved bytes that are not sent yet.
  bool holdsMoved() const { return held_ > 0; }
  // A frame of which the moved bytes are the end. `padding`: zeros behind them.
  void sendMoved(kj::ArrayPtr<const kj::byte> head, size_t moved, size_t padding);
  // Bytes that output may still queue.
  size_t room() const;
  // Asks for one onDrained when half of the room is back.
  void waitForRoom() { waiting_ = true; }
  // Closed: EOF, an error, or a protocol error of the host's. The owner looks
  // for closed streams after each turn of the loop.
  bool isOpen() const { return socket_.isOpen(); }
  void close();

 private:
  void ready(uint32_t events);
  void readFrames();
  void decode(kj::ArrayPtr<const capnp::word> frame);
  void push(Frame frame);
  void pushBytes(kj::ArrayPtr<const kj::byte> bytes, size_t moved,
                 kj::AutoCloseFd passed = nullptr);
  bool makePipe();
  void flush();
  ssize_t sendBytes();
  void sent(size_t bytes);
  void popSent();
  bool copyMoved(Frame& frame);

  FramePool& pool_;
  SendBudget& budget_;
  StreamOwner& owner_;
  WatchedFd socket_;
  ipc::FrameReader reader_;
  // What was moved in: read end, write end. Only with output in bulk.
  kj::AutoCloseFd movedOut_, movedIn_;
  size_t held_ = 0;  // bytes in that pipe
  bool mayMove_ = true;
  std::deque<Frame> queue_;
  size_t queued_ = 0;
  bool waiting_ = false;
};

}  // namespace cordon::agent
