#include "vm_agent/stream.h"

#include <kj/debug.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "vm_agent/output_frame.h"

namespace cordon::agent {

namespace {

constexpr size_t kReaderBytes = 4 * 1024;
constexpr size_t kSpareBuffers = 4;
constexpr size_t kGather = 8;
// A host that sends requests and never reads the answers.
constexpr size_t kMostQueued = 1024 * 1024;
// Frames taken per turn of the loop, so that one stream can't hold the others up.
constexpr int kFrameReadsPerTurn = 4;

}  // namespace

size_t Frame::memory() const {
  return pooled ? FramePool::bufferBytes() : size;
}

size_t FramePool::bufferBytes() {
  return outputFrameBytes(guest::MAX_OUTPUT_CHUNK);
}

std::unique_ptr<kj::byte[]> FramePool::take() {
  if (spare_.empty()) return std::unique_ptr<kj::byte[]>(new kj::byte[bufferBytes()]);
  auto buffer = std::move(spare_.back());
  spare_.pop_back();
  return buffer;
}

void FramePool::give(std::unique_ptr<kj::byte[]> buffer) {
  if (spare_.size() < kSpareBuffers) spare_.push_back(std::move(buffer));
}

Stream::Stream(Loop& loop, FramePool& pool, SendBudget& budget, kj::AutoCloseFd fd,
               StreamOwner& owner)
    : pool_(pool),
      budget_(budget),
      owner_(owner),
      socket_(loop, kj::mv(fd), [this](uint32_t events) { ready(events); }),
      reader_(guest::MAX_START_BYTES, kReaderBytes) {
  socket_.watch(EPOLLIN);
}

Stream::~Stream() noexcept(false) {
  budget_.queued -= queued_;
}

void Stream::close() {
  if (!isOpen()) return;
  socket_.close();
  queue_.clear();
  budget_.queued -= queued_;
  queued_ = 0;
}

void Stream::ready(uint32_t events) {
  if (events & EPOLLOUT) flush();
  if (isOpen() && (events & (EPOLLIN | EPOLLHUP | EPOLLERR))) readFrames();
}

void Stream::readFrames() {
  for (int turn = 0; turn < kFrameReadsPerTurn && isOpen(); ++turn) {
    auto space = reader_.space();
    ssize_t got = recv(socket_.get(), space.begin(), space.size(), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) return close();
    reader_.commit(static_cast<size_t>(got));
    while (isOpen()) {
      auto frame = reader_.next();
      if (frame == nullptr) break;
      KJ_IF_MAYBE (words, frame) decode(*words);
    }
    if (reader_.error() != ipc::FrameError::kNone) return close();
    if (static_cast<size_t>(got) < space.size()) return;
  }
}

void Stream::decode(kj::ArrayPtr<const capnp::word> frame) {
  auto failure = kj::runCatchingExceptions([&]() {
    size_t bytes = frame.asBytes().size();
    capnp::FlatArrayMessageReader message(frame, ipc::readerOptions(bytes));
    owner_.onMessage(*this, message.getRoot<guest::HostMessage>(), bytes);
  });
  if (failure != nullptr) close();
}

void Stream::send(capnp::MessageBuilder& message) {
  if (!isOpen()) return;
  auto words = ipc::frameMessage(message);
  auto bytes = words.asBytes();
  std::unique_ptr<kj::byte[]> copy(new kj::byte[bytes.size()]);
  memcpy(copy.get(), bytes.begin(), bytes.size());
  push({std::move(copy), bytes.size()});
  if (queued_ > kMostQueued) close();
}

void Stream::sendPooled(std::unique_ptr<kj::byte[]> buffer, size_t bytes) {
  if (!isOpen()) return pool_.give(std::move(buffer));
  // Small output must not pin whole buffers while it waits.
  if (bytes <= FramePool::bufferBytes() / 4) {
    std::unique_ptr<kj::byte[]> copy(new kj::byte[bytes]);
    memcpy(copy.get(), buffer.get(), bytes);
    pool_.give(std::move(buffer));
    return push({std::move(copy), bytes});
  }
  push({std::move(buffer), bytes, 0, true});
}

size_t Stream::room() const {
  size_t most = budget_.queued < SendBudget::kTotal ? SendBudget::kPerStream
                                                    : SendBudget::kPerStreamWhenShort;
  return queued_ < most ? most - queued_ : 0;
}

void Stream::push(Frame frame) {
  queued_ += frame.memory();
  budget_.queued += frame.memory();
  queue_.push_back(std::move(frame));
  // While an earlier frame waits for EPOLLOUT, so does this one.
  if (queue_.size() == 1) flush();
}

void Stream::flush() {
  while (!queue_.empty()) {
    iovec parts[kGather];
    size_t count = std::min(queue_.size(), kGather);
    for (size_t i = 0; i < count; ++i) {
      parts[i] = {queue_[i].bytes.get() + queue_[i].sent, queue_[i].size - queue_[i].sent};
    }
    msghdr message = {};
    message.msg_iov = parts;
    message.msg_iovlen = count;
    ssize_t sent = sendmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EAGAIN || errno == ENOBUFS || errno == ENOMEM)) {
      socket_.watch(EPOLLIN | EPOLLOUT);
      break;
    }
    if (sent < 0) return close();
    auto rest = static_cast<size_t>(sent);
    while (rest > 0) {
      Frame& frame = queue_.front();
      size_t taken = std::min(rest, frame.size - frame.sent);
      frame.sent += taken;
      rest -= taken;
      if (frame.sent < frame.size) break;
      queued_ -= frame.memory();
      budget_.queued -= frame.memory();
      if (frame.pooled) pool_.give(std::move(frame.bytes));
      queue_.pop_front();
    }
  }
  if (queue_.empty()) socket_.watch(EPOLLIN);
  if (waiting_ && queued_ <= SendBudget::kPerStream / 2) {
    waiting_ = false;
    owner_.onDrained(*this);
  }
}

}  // namespace cordon::agent
