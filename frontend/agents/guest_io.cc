#include "frontend/agents/guest_io.h"

#include <errno.h>
#include <kj/debug.h>
#include <sys/socket.h>

#include "ipc/fdpass.h"

namespace cordon::agents {
namespace {

// Reads in a row before others on the loop get their turn.
constexpr int kReadsPerTurn = 8;
// A batch is complete with about so many bytes, or when there is nothing more to read.
constexpr size_t kFullBatch = 192 * 1024;
// A read of less than this is not followed by another, which would find nothing.
constexpr size_t kShortRead = 16 * 1024;

}  // namespace

GuestIo::GuestIo(kj::UnixEventPort& port, kj::AutoCloseFd fd, GuestStream& stream, Owner& owner,
                 DescriptorBin& bin)
    : fd_(kj::mv(fd)),
      observer_(port, fd_, kj::UnixEventPort::FdObserver::OBSERVE_READ_WRITE),
      stream_(stream),
      owner_(owner),
      bin_(bin) {}

GuestIo::~GuestIo() noexcept(false) {}

void GuestIo::begin() {
  reading_ = readLoop().eagerlyEvaluate([this](kj::Exception&& e) {
    KJ_LOG(ERROR, "reading from a guest", e);
    ended(GuestFault::kNone);
  });
}

kj::Promise<void> GuestIo::readLoop() {
  for (int i = 0; i < kReadsPerTurn; ++i) {
    if (closed_) return kj::READY_NOW;
    if (paused_) {
      auto paf = kj::newPromiseAndFulfiller<void>();
      resume_ = kj::mv(paf.fulfiller);
      return paf.promise.then([this] { return readLoop(); });
    }
    auto space = stream_.space();
    size_t most = kj::min(space.size(), kFullBatch - batch_);
    // Also where none should come: a plain recv would have the kernel close them
    // here, and wait for that.
    auto received = ipc::receiveWithFds(fd_, space.slice(0, most), ipc::kMostFdsAtOnce);
    if (received == nullptr) {
      endBatch();
      return observer_.whenBecomesReadable().then([this] { return readLoop(); });
    }
    auto& message = KJ_ASSERT_NONNULL(received);
    if (!message.fds.empty()) owner_.onDescriptors(std::move(message.fds));
    if (closed_) return kj::READY_NOW;
    auto n = message.bytes;
    if (n == 0) {  // end, or a reset, which is as good as one
      endBatch();
      ended(GuestFault::kNone);
      return kj::READY_NOW;
    }
    if (!stream_.commit(static_cast<size_t>(n))) {
      ended(stream_.fault());
      return kj::READY_NOW;
    }
    batch_ += static_cast<size_t>(n);
    if (static_cast<size_t>(n) < kShortRead || batch_ + kShortRead > kFullBatch) endBatch();
  }
  endBatch();
  return kj::evalLater([this] { return readLoop(); });
}

void GuestIo::endBatch() {
  if (batch_ == 0 || closed_) return;
  batch_ = 0;
  owner_.onBatch();
}

void GuestIo::resume() {
  paused_ = false;
  KJ_IF_MAYBE (fulfiller, resume_) {
    (*fulfiller)->fulfill();
    resume_ = nullptr;
  }
}

void GuestIo::ended(GuestFault fault) {
  if (closed_) return;
  close();
  owner_.onStreamEnd(fault);
}

void GuestIo::send(kj::Array<capnp::word> frame) {
  if (closed_) return;
  outboxBytes_ += frame.asBytes().size();
  frames_.push_back(kj::mv(frame));
  if (writing_ || flush()) return;
  writing_ = true;
  writer_ = writeLoop().eagerlyEvaluate([](kj::Exception&& e) {
    KJ_LOG(ERROR, "writing to a guest", e);  // the reader sees the end of the stream
  });
}

kj::Promise<void> GuestIo::writeLoop() {
  return observer_.whenBecomesWritable().then([this]() -> kj::Promise<void> {
    // writing_ stays set meanwhile, so that a send() from onSent() only queues.
    while (!closed_ && flush()) {
      owner_.onSent();
      if (frames_.empty()) {
        writing_ = false;
        return kj::READY_NOW;
      }
    }
    if (closed_) return kj::READY_NOW;
    return writeLoop();
  });
}

bool GuestIo::flush() {
  while (!frames_.empty()) {
    auto bytes = frames_.front().asBytes();
    ssize_t n =
        ::send(fd_, bytes.begin() + sent_, bytes.size() - sent_, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return false;
    if (n < 0) {  // nobody reads: what is still to be read from there may matter
      frames_.clear();
      outboxBytes_ = sent_ = 0;
      return true;
    }
    sent_ += static_cast<size_t>(n);
    outboxBytes_ -= static_cast<size_t>(n);
    if (sent_ == bytes.size()) {
      frames_.pop_front();
      sent_ = 0;
    }
  }
  return true;
}

void GuestIo::close() {
  if (closed_) return;
  closed_ = true;
  frames_.clear();
  outboxBytes_ = sent_ = 0;
  shutdown(fd_, SHUT_RDWR);  // the fd itself goes with the observer
  // Or what nobody has read would be closed there.
  bin_.drain(fd_);
}

}  // namespace cordon::agents
