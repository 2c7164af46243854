// Decodes what vm-agent says on the stream of one exec. Everything here is
// hostile input: the other end may be anybody inside the sandbox.
//
// A state machine over bytes, without I/O. Its rules, beyond well-formedness
// (frames of ipc/framing.h, at most maxFrameBytes each, one message a frame):
//   - `hello` of our protocol version comes first and once;
//   - before `started()` was called here, nothing else comes;
//   - then `started` at most once, and before any output or the end; output may
//     come without it (it implies it), and so may `exited` (killed early);
//   - `failed` comes instead of started, output and exited;
//   - output has at least one byte, and each stream's offsets only grow and
//     never overlap (a gap is what the agent dropped past its cap);
//   - credit is never empty, only with stdin open, and never more than
//     kMaxCredit may be outstanding;
//   - `exited` or `failed` is the last message, with totals that are not below
//     what was sent.
// The first violation is final: fault() names it, nothing more is decoded, and
// nothing that was held grows. Messages are delivered in order as they arrive.
//
// Not thread-safe.
#pragma once
#include <grpcpp/support/slice.h>
#include <kj/array.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace cordon::agents {

enum class GuestFault : uint8_t {
  kNone,
  kBadFrame,     // magic, length, or larger than any message
  kBadMessage,   // not a capnp message of ours
  kBadVersion,   // hello of another protocol
  kBadSequence,  // a message that has no place here
  kWrongExec,    // another exec's number
  kBadOffset,    // backwards, overlapping, past 2^63, or empty output
  kBadCredit,
  kBadExit,  // impossible numbers in exited or failed
};
const char* name(GuestFault fault);

struct GuestTotals {
  uint64_t total = 0, dropped = 0, left = 0;
};

struct GuestScratch {
  std::string path;  // printable ASCII, the rest as \xNN; likewise fileAtLimit
  uint64_t totalBytes = 0, freeBytes = 0, totalInodes = 0, freeInodes = 0;
};

struct GuestExit {
  bool signaled = false;
  uint32_t code = 0;
  uint64_t userUs = 0, systemUs = 0, maxRssBytes = 0, wallUs = 0;
  std::array<GuestTotals, 2> streams;  // stdout, stderr
  bool killedByHost = false;
  bool killedByDeadline = false;  // the agent's own backstop
  uint32_t leftRunning = 0;
  std::vector<GuestScratch> scratch;
  std::string fileAtLimit;
};

struct GuestFailure {
  uint32_t error = 0;     // errno
  const char* step = "";  // "lookup", "exec", "cwd", ...
  bool request = false;   // the agent refused the start message itself
};

// Receives the decoded messages, during commit(). It may not call the decoder.
class GuestSink {
 public:
  virtual ~GuestSink() noexcept(false) = default;
  virtual void onStarted() = 0;
  // `bytes` keeps its memory by itself. `cost`: what it holds of that, and what
  // the outputs kept before it turned out to hold besides. False: it was not
  // kept, and whatever is kept next takes the cost over.
  virtual bool onOutput(unsigned stream, uint64_t offset, grpc::Slice bytes, size_t cost) = 0;
  virtual void onCredit(uint32_t bytes) = 0;
  virtual void onExited(GuestExit exit) = 0;
  virtual void onFailed(GuestFailure failure) = 0;
};

class GuestStream {
 public:
  static constexpr uint64_t kMaxCredit = 1024 * 1024;

  GuestStream(GuestSink& sink, uint32_t exec, bool withStdin);

  // The start message is on its way: answers are expected from now on.
  void started() { mayAnswer_ = true; }
  // So many bytes of stdin were sent.
  void spent(uint64_t bytes) { credit_ -= bytes; }
  // Of stdin that may be sent now.
  uint64_t credit() const { return credit_; }

  // Where to read to; never empty while there is no fault.
  kj::ArrayPtr<kj::byte> space();
  // Decodes the `bytes` that were read to space(). False: there is a fault.
  bool commit(size_t bytes);

  GuestFault fault() const { return fault_; }
  // The first message after the start has come.
  bool answered() const { return answered_; }
  // The last message has come.
  bool ended() const { return ended_; }

 private:
  GuestFault decodeFrames();
  GuestFault decode(kj::ArrayPtr<const kj::byte> payload);
  struct Visitor;
  // What keeping a piece of buffer_ (or nothing of it: `copied`) costs now.
  size_t due(bool copied) const;
  void paid(bool copied);

  GuestSink& sink_;
  const uint32_t exec_;
  const bool withStdin_;
  uint64_t credit_;

  bool mayAnswer_ = false, greeted_ = false, started_ = false, answered_ = false, ended_ = false;
  std::array<uint64_t, 2> end_{};  // of the output seen so far
  GuestFault fault_ = GuestFault::kNone;

  // Shared with the outputs that were cut from it: bytes before `filled_` are
  // never written again.
  grpc::Slice buffer_;
  size_t begin_ = 0, filled_ = 0;

  // One small piece holds all of its buffer, and what else is in there may be
  // padding. So a buffer that is held is charged to what is kept, up to its
  // end, a buffer late at most.
  bool held_ = false;   // a piece of buffer_ was kept
  size_t charged_ = 0;  // of buffer_, from its beginning
  size_t owed_ = 0;     // by the buffers before it
};

}  // namespace cordon::agents
