// The stream to vm-agent as a file descriptor: reads it into a GuestStream and
// sends frames, never blocking. Lives on the loop thread.
#pragma once
#include <capnp/common.h>
#include <kj/async-unix.h>
#include <kj/async.h>
#include <kj/io.h>

#include <deque>
#include <vector>

#include "frontend/agents/descriptor_bin.h"
#include "frontend/agents/guest_stream.h"

namespace cordon::agents {

class GuestIo {
 public:
  class Owner {
   public:
    virtual ~Owner() noexcept(false) = default;
    // These came with bytes that are decoded next.
    virtual void onDescriptors(std::vector<kj::AutoCloseFd> fds) = 0;
    // Everything that was there to be read, or much of it, was decoded.
    virtual void onBatch() = 0;
    // Nothing more comes: end of the stream, an error of it (both kNone), or a
    // violation of the protocol. Called once, never after close().
    virtual void onStreamEnd(GuestFault fault) = 0;
    // The outbox is empty again.
    virtual void onSent() = 0;
  };

  // `fd` is a unix stream socket. What descriptors nobody takes any more go to
  // `bin`.
  GuestIo(kj::UnixEventPort& port, kj::AutoCloseFd fd, GuestStream& stream, Owner& owner,
          DescriptorBin& bin);
  ~GuestIo() noexcept(false);
  KJ_DISALLOW_COPY(GuestIo);

  // Starts reading.
  void begin();
  // While paused nothing is read, and so the program's writes stop in the end.
  void pause() { paused_ = true; }
  void resume();

  void send(kj::Array<capnp::word> frame);
  // Bytes that send() could not write yet.
  size_t outbox() const { return outboxBytes_; }

  // Ends both directions; vm-agent ends the stream's execs. Nothing is called
  // after it. May be called from within the owner's callbacks.
  void close();

 private:
  kj::Promise<void> readLoop();
  kj::Promise<void> writeLoop();
  void endBatch();
  bool flush();  // true: all of it is written (or nobody reads any more)
  void ended(GuestFault fault);

  kj::AutoCloseFd fd_;
  kj::UnixEventPort::FdObserver observer_;  // goes before the fd
  GuestStream& stream_;
  Owner& owner_;
  DescriptorBin& bin_;
  bool paused_ = false, closed_ = false, writing_ = false;
  kj::Maybe<kj::Own<kj::PromiseFulfiller<void>>> resume_;
  std::deque<kj::Array<capnp::word>> frames_;
  size_t batch_ = 0;  // bytes decoded since the last onBatch()
  size_t sent_ = 0;   // of the first frame
  size_t outboxBytes_ = 0;
  kj::Promise<void> reading_ = nullptr, writer_ = nullptr;
};

}  // namespace cordon::agents
