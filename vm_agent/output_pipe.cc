#include "vm_agent/output_pipe.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>

#include "vm_agent/output_frame.h"

namespace cordon::agent {

namespace {

constexpr int kReadsPerTurn = 4;
constexpr size_t kSmallestRead = 4096;
// Less is copied: to move it costs as much.
constexpr size_t kSmallestMove = 32 * 1024;

uint64_t readableNow(int fd) {
  int bytes = 0;
  return ioctl(fd, FIONREAD, &bytes) == 0 && bytes > 0 ? static_cast<uint64_t>(bytes) : 0;
}

}  // namespace

OutputPipe::OutputPipe(Loop& loop, FramePool& pool, uint32_t exec, guest::OutputStream which,
                       uint64_t cap)
    : loop_(loop), pool_(pool), exec_(exec), which_(which), account_(cap) {}

int OutputPipe::open(kj::AutoCloseFd& writeEnd, int capacity) {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) return errno;
  kj::AutoCloseFd readEnd(fds[0]);
  writeEnd = kj::AutoCloseFd(fds[1]);
  // The read end alone: each end is an open file of its own.
  if (fcntl(readEnd, F_SETFL, O_RDONLY | O_NONBLOCK) != 0) return errno;
  // Best effort: the user's pipe pages may be used up.
  if (capacity > 0) fcntl(readEnd, F_SETPIPE_SZ, capacity);
  // The pipe is the agent's; programs of another uid open /dev/stdout by name.
  fchmod(writeEnd, 0622);
  pipe_.emplace(loop_, kj::mv(readEnd), [this](uint32_t) { pump(); });
  return 0;
}

void OutputPipe::start(Stream& stream) {
  stream_ = &stream;
  if (!finished_) pipe_->watch(EPOLLIN);
}

void OutputPipe::resume() {
  // Not read at once: this may be called from within a send of ours.
  if (!finished_ && stream_ != nullptr) pipe_->watch(EPOLLIN);
}

void OutputPipe::drain() {
  if (finished_ || draining_) return;
  draining_ = true;
  drainLeft_ = readableNow(pipe_->get());
  pump();
}

void OutputPipe::abandon() {
  stream_ = nullptr;
  finished_ = true;
  if (pipe_) pipe_->close();
}

void OutputPipe::pump() {
  Turn turn = Turn::kMore;
  for (int i = 0; i < kReadsPerTurn && turn == Turn::kMore; ++i) {
    if (draining_ && drainLeft_ == 0) {
      turn = Turn::kDone;
    } else {
      turn = account_.headIsFull() ? takePastHead() : takeHead();
    }
  }
  if (finished_) return;  // abandoned meanwhile
  switch (turn) {
    case Turn::kMore:
      pipe_->watch(EPOLLIN);
      break;
    case Turn::kWait:
      if (draining_) {
        finish();
      } else {
        pipe_->watch(EPOLLIN);
      }
      break;
    case Turn::kPaused:
      // Out of the loop altogether: a hang-up would be reported for ever.
      pipe_->watch(0);
      break;
    case Turn::kDone:
      finish();
      break;
  }
}

size_t OutputPipe::limited(size_t bytes) const {
  return draining_ ? std::min<uint64_t>(bytes, drainLeft_) : bytes;
}

OutputPipe::Turn OutputPipe::afterRead(ssize_t got) {
  if (got == 0) return Turn::kDone;
  if (got < 0) return errno == EINTR ? Turn::kMore : Turn::kWait;
  if (draining_) drainLeft_ -= std::min<uint64_t>(drainLeft_, static_cast<uint64_t>(got));
  return Turn::kMore;
}

OutputPipe::Turn OutputPipe::takeHead() {
  size_t room = stream_->room();
  if (room == 0) {
    stream_->waitForRoom();
    return Turn::kPaused;
  }
  size_t want = std::min<uint64_t>(guest::MAX_OUTPUT_CHUNK, account_.headRoom());
  want = std::min(want, std::max(room, kSmallestRead));
  if (!draining_ && want >= kSmallestMove && readableNow(pipe_->get()) >= kSmallestMove) {
    if (stream_->holdsMoved()) {
      stream_->waitForRoom();
      return Turn::kPaused;
    }
    if (moveHead(want)) return Turn::kMore;
  }
  auto buffer = pool_.take();
  kj::byte* data = buffer.get() + outputDataOffset();
  // Never less than a packet: of a pipe in O_DIRECT mode the rest would be lost.
  ssize_t got = read(pipe_->get(), data, limited(std::max<size_t>(want, PIPE_BUF)));
  Turn turn = afterRead(got);
  if (got <= 0) {
    pool_.give(std::move(buffer));
    return turn;
  }
  auto all = static_cast<size_t>(got);
  size_t bytes = std::min<uint64_t>(all, account_.headRoom());
  auto offset = account_.total();
  account_.takeHead(bytes);
  // Before the frame is finished, which pads its end.
  if (all > bytes) account_.takeTail(kj::arrayPtr(data + bytes, all - bytes));
  finishOutputFrame(buffer.get(), exec_, which_, offset, bytes);
  stream_->sendPooled(std::move(buffer), outputFrameBytes(bytes));
  return turn;
}

// Much output goes from the program's pipe to the socket without being copied.
bool OutputPipe::moveHead(size_t most) {
  size_t moved = stream_->moveIn(pipe_->get(), most);
  if (moved == 0) return false;
  auto buffer = pool_.take();
  finishOutputFrame(buffer.get(), exec_, which_, account_.total(), moved);
  account_.takeHead(moved);
  stream_->sendMoved(kj::arrayPtr(buffer.get(), outputDataOffset()), moved,
                     outputFrameBytes(moved) - outputDataOffset() - moved);
  pool_.give(std::move(buffer));
  return true;
}

OutputPipe::Turn OutputPipe::takePastHead() {
  auto buffer = pool_.take();
  ssize_t got = read(pipe_->get(), buffer.get(), limited(FramePool::bufferBytes()));
  Turn turn = afterRead(got);
  if (got > 0) account_.takeTail(kj::arrayPtr(buffer.get(), static_cast<size_t>(got)));
  pool_.give(std::move(buffer));
  return turn;
}

void OutputPipe::finish() {
  // Some process that outlived main may have written since.
  if (draining_) left_ = readableNow(pipe_->get());
  pipe_->close();
  finished_ = true;
  sendTail();
}

void OutputPipe::sendTail() {
  auto tail = account_.tail();
  size_t bytes = tail.first.size() + tail.second.size();
  if (bytes == 0 || stream_ == nullptr) return;
  auto buffer = pool_.take();
  kj::byte* data = buffer.get() + outputDataOffset();
  memcpy(data, tail.first.begin(), tail.first.size());
  memcpy(data + tail.first.size(), tail.second.begin(), tail.second.size());
  finishOutputFrame(buffer.get(), exec_, which_, tail.offset, bytes);
  stream_->sendPooled(std::move(buffer), outputFrameBytes(bytes));
}

void OutputPipe::report(guest::StreamTotals::Builder totals) const {
  totals.setTotal(account_.total());
  totals.setDropped(account_.dropped());
  totals.setLeft(left_);
}

}  // namespace cordon::agent
