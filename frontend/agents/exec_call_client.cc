// What passes between a call and its client while the program runs: requests
// after the first, and output.
#include <kj/debug.h>

#include "frontend/agents/exec_call.h"
#include "frontend/agents/exec_messages.h"
#include "frontend/agents/exec_reactor.h"
#include "ipc/guest.capnp.h"

namespace cordon::agents {
namespace {

// Output messages given to gRPC: one under way and a full one to follow at once.
constexpr size_t kWritesAhead = 2;
// Stdin held for a program, beyond which no request is read.
constexpr size_t kMostStdin = 256 * 1024;
constexpr size_t kLargestStdinMessage = 1024 * 1024;
constexpr size_t kStdinChunk = guest::MAX_OUTPUT_CHUNK;
constexpr size_t kMostOutbox = 256 * 1024;
constexpr int kLargestSignal = 64;

}  // namespace

// ---------------------------------------------------------------------------
// Requests after the first.

void ExecCall::request(v1::ExecRequest& request) {
  reading_ = false;
  if (phase_ != Phase::kRunning) return;
  switch (request.message_case()) {
    case v1::ExecRequest::kStdin:
      if (!open_.exec.withStdin || stdinEnds_) {
        return fail(invalid("STDIN_NOT_OPEN", "stdin", "the program's stdin is not open"));
      }
      if (request.stdin().size() > kLargestStdinMessage) {
        return fail(invalid("STDIN_TOO_LARGE", "stdin", "more than 1 MiB in one message",
                            kLargestStdinMessage));
      }
      if (!request.stdin().empty()) {
        stdinHeld_ += request.stdin().size();
        stdin_.push_back(std::move(*request.mutable_stdin()));
      }
      break;
    case v1::ExecRequest::kCloseStdin:
      if (request.close_stdin()) stdinEnds_ = true;
      break;
    case v1::ExecRequest::kSignal:
      if (request.signal() < 1 || request.signal() > kLargestSignal) {
        return fail(invalid("BAD_SIGNAL", "signal", "no such signal", kLargestSignal));
      }
      KJ_ASSERT_NONNULL(io_)->send(hostFrame([&](guest::HostMessage::Builder message) {
        auto signal = message.initSignal();
        signal.setExec(exec_);
        signal.setSigno(static_cast<uint32_t>(request.signal()));
      }));
      break;
    default:
      return fail(invalid("BAD_SEQUENCE", "", "only stdin, close_stdin and signal may follow"));
  }
  pumpStdin();
}

void ExecCall::malformed() {
  reading_ = false;
  if (phase_ != Phase::kRunning) return;
  fail(invalid("MALFORMED_REQUEST", "", "the request is not an ExecRequest"));
}

void ExecCall::halfClosed() {
  stdinEnds_ = true;
  if (phase_ == Phase::kRunning) pumpStdin();
  // reading_ stays set: there is nothing more to read.
}

void ExecCall::pumpStdin() {
  auto& io = *KJ_ASSERT_NONNULL(io_);
  auto& stream = *KJ_ASSERT_NONNULL(stream_);
  while (!stdin_.empty() && stream.credit() > 0 && io.outbox() < kMostOutbox) {
    auto& front = stdin_.front();
    size_t n = kj::min(kj::min(front.size() - stdinSent_, kStdinChunk), stream.credit());
    io.send(hostFrame([&](guest::HostMessage::Builder message) {
      auto chunk = message.initStdin();
      chunk.setExec(exec_);
      chunk.setBytes({reinterpret_cast<const kj::byte*>(front.data()) + stdinSent_, n});
    }));
    stream.spent(n);
    stdinSent_ += n;
    stdinHeld_ -= n;
    if (stdinSent_ == front.size()) {
      stdin_.pop_front();
      stdinSent_ = 0;
    }
  }
  if (stdinEnds_ && stdin_.empty() && open_.exec.withStdin && !stdinClosed_) {
    stdinClosed_ = true;
    io.send(hostFrame([&](guest::HostMessage::Builder message) { message.setCloseStdin(exec_); }));
  }
  readMore();
}

void ExecCall::readLater() {
  reading_ = true;
  after(kQuietStart, [this] {
    reading_ = false;
    readMore();
  });
}

void ExecCall::readMore() {
  if (reading_ || phase_ != Phase::kRunning || stdinHeld_ >= kMostStdin ||
      KJ_ASSERT_NONNULL(io_)->outbox() >= kMostOutbox) {
    return;
  }
  reading_ = true;
  reactor_.readNext();
}

// ---------------------------------------------------------------------------
// Output to the client.

void ExecCall::sendStarted() {
  if (startedSent_) return;
  startedSent_ = true;
  v1::ExecResponse response;
  response.mutable_started()->set_name(name_);
  response.mutable_started()->set_acquire_ms(acquireMs_);
  send(serialize(response), 0);
}

void ExecCall::send(grpc::ByteBuffer message, size_t cost) {
  inFlight_.push_back(cost);
  if (cost > 0) ++outputsInFlight_;
  reactor_.write(message);
}

// Each message costs a way to gRPC's threads and back, so while one is under way
// what comes is gathered.
void ExecCall::sendOutput() {
  while (outputsInFlight_ < kWritesAhead && (!full_.empty() || !pending_.empty())) {
    if (full_.empty()) {
      if (outputsInFlight_ > 0 && !pending_.full()) return;
      full_.push_back(std::exchange(pending_, {}));
    }
    auto cost = full_.front().cost();
    send(full_.front().take(), cost);
    full_.pop_front();
  }
}

void ExecCall::discardOutput() {
  discarding_ = true;
  for (const auto& message : full_) held_ -= message.cost();
  held_ -= pending_.cost();
  full_.clear();
  pending_ = {};
}

void ExecCall::writeDone(size_t messages, bool ok) {
  writesDone_ += messages;
  for (; messages > 0; --messages) {
    held_ -= inFlight_.front();
    if (inFlight_.front() > 0) --outputsInFlight_;
    inFlight_.pop_front();
  }
  if (!ok) discardOutput();
  sendOutput();
  if (phase_ == Phase::kFlushing && inFlight_.empty()) {
    flushed();
  } else if (phase_ == Phase::kRunning && held_ < kMostHeld) {
    KJ_ASSERT_NONNULL(io_)->resume();
  }
}

}  // namespace cordon::agents
