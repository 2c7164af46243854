#include "vm_agent/stream.h"

#include <fcntl.h>
#include <kj/debug.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "ipc/fdpass.h"
#include "vm_agent/output_frame.h"

namespace cordon::agent {

namespace {

constexpr size_t kReaderBytes = 4 * 1024;
constexpr size_t kSpareBuffers = 4;
constexpr size_t kGather = 8;
constexpr int kBulkSendBuffer = 256 * 1024;  // which the kernel doubles
// A host that sends requests and never reads the answers.
constexpr size_t kMostQueued = 1024 * 1024;
// Frames taken per turn of the loop, so that one stream can't hold the others up.
constexpr int kFrameReadsPerTurn = 4;

}  // namespace

size_t Frame::memory() const {
  return (pooled ? FramePool::bufferBytes() : size) + moved;
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
  movedIn_ = nullptr;
  movedOut_ = nullptr;
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

void Stream::send(capnp::MessageBuilder& message, kj::AutoCloseFd passed) {
  if (!isOpen()) return;
  auto words = ipc::frameMessage(message);
  pushBytes(words.asBytes(), 0, kj::mv(passed));
  if (queued_ > kMostQueued) close();
}

void Stream::sendPooled(std::unique_ptr<kj::byte[]> buffer, size_t bytes) {
  if (!isOpen()) return pool_.give(std::move(buffer));
  // Small output must not pin whole buffers while it waits.
  if (bytes <= FramePool::bufferBytes() / 4) {
    pushBytes(kj::arrayPtr(buffer.get(), bytes), 0);
    return pool_.give(std::move(buffer));
  }
  push({std::move(buffer), bytes, 0, true, 0, nullptr});
}

// Between a program's pipe and the socket stands one of our own: what is in it
// is there for certain when the frame's head announces it.
bool Stream::makePipe() {
  if (movedIn_.get() >= 0) return true;
  int fds[2];
  // splice() waits for a socket's room unless the socket itself says not to.
  mayMove_ = fcntl(socket_.get(), F_SETFL, O_RDWR | O_NONBLOCK) == 0 &&
             pipe2(fds, O_CLOEXEC | O_NONBLOCK) == 0;
  if (!mayMove_) return false;
  // Best effort, as large as the host lets it be: each time that the socket is
  // full costs a wake-up.
  setsockopt(socket_.get(), SOL_SOCKET, SO_SNDBUF, &kBulkSendBuffer, sizeof(kBulkSendBuffer));
  movedOut_ = kj::AutoCloseFd(fds[0]);
  movedIn_ = kj::AutoCloseFd(fds[1]);
  return true;
}

size_t Stream::moveIn(int pipe, size_t most) {
  if (!isOpen() || held_ > 0 || !mayMove_ || !makePipe()) return 0;
  ssize_t moved = splice(pipe, nullptr, movedIn_, nullptr, most, SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
  if (moved < 0) mayMove_ = errno == EAGAIN || errno == EINTR;
  if (moved <= 0) return 0;
  held_ = static_cast<size_t>(moved);
  return held_;
}

void Stream::sendMoved(kj::ArrayPtr<const kj::byte> head, size_t moved, size_t padding) {
  pushBytes(head, moved);
  const kj::byte zeros[sizeof(capnp::word)] = {};
  if (padding > 0) pushBytes(kj::arrayPtr(zeros, padding), 0);
}

void Stream::pushBytes(kj::ArrayPtr<const kj::byte> bytes, size_t moved, kj::AutoCloseFd passed) {
  std::unique_ptr<kj::byte[]> copy(new kj::byte[bytes.size()]);
  memcpy(copy.get(), bytes.begin(), bytes.size());
  push({std::move(copy), bytes.size(), 0, false, moved, kj::mv(passed)});
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
  while (isOpen() && !queue_.empty()) {
    Frame& front = queue_.front();
    bool bytes = front.sent < front.size;
    ssize_t done = bytes ? sendBytes()
                         : splice(movedOut_, nullptr, socket_.get(), nullptr, front.moved,
                                  SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0 && (errno == EAGAIN || errno == ENOBUFS || errno == ENOMEM)) {
      socket_.watch(EPOLLIN | EPOLLOUT);
      break;
    }
    if (done < 0 && errno == EINVAL && !bytes && copyMoved(front)) continue;
    if (done <= 0) return close();
    if (bytes) {
      sent(static_cast<size_t>(done));
    } else {
      held_ -= static_cast<size_t>(done);
      queued_ -= static_cast<size_t>(done);
      budget_.queued -= static_cast<size_t>(done);
      front.moved -= static_cast<size_t>(done);
    }
    popSent();
  }
  if (queue_.empty()) socket_.watch(EPOLLIN);
  if (waiting_ && held_ == 0 && queued_ <= SendBudget::kPerStream / 2) {
    waiting_ = false;
    owner_.onDrained(*this);
  }
}

// For a kernel that splices between pipes but not to a socket.
bool Stream::copyMoved(Frame& frame) {
  mayMove_ = false;
  std::unique_ptr<kj::byte[]> copy(new kj::byte[frame.moved]);
  if (read(movedOut_, copy.get(), frame.moved) != static_cast<ssize_t>(frame.moved)) return false;
  queued_ -= frame.size;
  budget_.queued -= frame.size;
  held_ -= frame.moved;
  frame = {std::move(copy), frame.moved, 0, false, 0, nullptr};
  return true;
}

// Bytes of the first frames, up to one that goes on in the pipe.
ssize_t Stream::sendBytes() {
  iovec parts[kGather];
  size_t count = 0;
  while (count < std::min(queue_.size(), kGather)) {
    const Frame& frame = queue_[count];
    // A descriptor goes with the first byte of all that is sent at once.
    if (count > 0 && frame.passed.get() >= 0) break;
    parts[count++] = {frame.bytes.get() + frame.sent, frame.size - frame.sent};
    if (frame.moved > 0) break;
  }
  msghdr message = {};
  message.msg_iov = parts;
  message.msg_iovlen = count;
  kj::AutoCloseFd& passed = queue_.front().passed;
  ipc::PassedFd beside;
  if (passed.get() >= 0) beside.attachTo(message, passed);
  ssize_t sent = sendmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent > 0) passed = nullptr;
  return sent;
}

void Stream::sent(size_t bytes) {
  for (size_t i = 0; bytes > 0; ++i) {
    Frame& frame = queue_[i];
    size_t taken = std::min(bytes, frame.size - frame.sent);
    frame.sent += taken;
    bytes -= taken;
  }
}

void Stream::popSent() {
  while (!queue_.empty() && queue_.front().sent == queue_.front().size &&
         queue_.front().moved == 0) {
    Frame& frame = queue_.front();
    queued_ -= frame.memory();
    budget_.queued -= frame.memory();
    if (frame.pooled) pool_.give(std::move(frame.bytes));
    queue_.pop_front();
  }
}

}  // namespace cordon::agent
