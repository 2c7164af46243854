#include "frontend/agents/guest_stream.h"

#include <capnp/serialize.h>
#include <grpc/slice.h>
#include <string.h>

#include "ipc/framing.h"
#include "ipc/guest.capnp.h"

namespace cordon::agents {
namespace {

// Most execs say little: a small buffer first, then one that holds a few of
// the largest frames.
constexpr size_t kFirstBuffer = 16 * 1024;
constexpr size_t kBuffer = 256 * 1024;
constexpr size_t kLargestFrame = ipc::kFrameHeaderBytes + guest::MAX_FRAME_BYTES;
static_assert(kBuffer >= 2 * kLargestFrame);
// Space for less than this is not worth a read.
constexpr size_t kSmallestRead = 4 * 1024;
// Output below this is copied, so that a few bytes do not hold a large buffer.
constexpr size_t kCopyBelow = 4 * 1024;
// What a slice and its place in lists take besides the bytes.
constexpr size_t kSliceOverhead = 128;
// The most that the totals of a stream can honestly be.
constexpr uint64_t kLargestOffset = uint64_t{1} << 62;
constexpr size_t kMaxScratch = 16;
constexpr size_t kMaxPath = 4096;
constexpr uint32_t kMaxLeftRunning = 65535;

kj::byte* data(const grpc::Slice& slice) {
  return const_cast<kj::byte*>(slice.begin());
}

grpc::Slice newBuffer(size_t size) {
  return {grpc_slice_malloc(size), grpc::Slice::STEAL_REF};
}

uint32_t readLe32(const kj::byte* p) {
  return uint32_t{p[0]} | uint32_t{p[1]} << 8 | uint32_t{p[2]} << 16 | uint32_t{p[3]} << 24;
}

const char* stepName(guest::FailStep step) {
  switch (step) {
    case guest::FailStep::REQUEST:
      return "request";
    case guest::FailStep::FORK:
      return "fork";
    case guest::FailStep::CGROUP:
      return "cgroup";
    case guest::FailStep::STDIO:
      return "stdio";
    case guest::FailStep::USER:
      return "user";
    case guest::FailStep::RLIMITS:
      return "rlimits";
    case guest::FailStep::CWD:
      return "cwd";
    case guest::FailStep::SECCOMP:
      return "seccomp";
    case guest::FailStep::LOOKUP:
      return "lookup";
    case guest::FailStep::EXEC:
      return "exec";
  }
  return nullptr;
}

// A path may be any bytes, and goes into text: what is not printable ASCII is
// shown as \xNN.
std::string asText(capnp::Text::Reader text) {
  static const char kHex[] = "0123456789abcdef";
  std::string out;
  for (char c : text) {
    auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      out += c;
    } else {
      out += "\\x";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    }
  }
  return out;
}

// False: impossible.
bool readTotals(guest::StreamTotals::Reader in, uint64_t seen, GuestTotals& out) {
  out = {in.getTotal(), in.getDropped(), in.getLeft()};
  return out.total <= kLargestOffset && out.total >= seen && out.dropped <= out.total &&
         out.left <= kLargestOffset;
}

}  // namespace

const char* name(GuestFault fault) {
  switch (fault) {
    case GuestFault::kNone:
      return "none";
    case GuestFault::kBadFrame:
      return "bad frame";
    case GuestFault::kBadMessage:
      return "bad message";
    case GuestFault::kBadVersion:
      return "other protocol version";
    case GuestFault::kBadSequence:
      return "message out of sequence";
    case GuestFault::kWrongExec:
      return "wrong exec number";
    case GuestFault::kBadOffset:
      return "bad output offset";
    case GuestFault::kBadCredit:
      return "bad stdin credit";
    case GuestFault::kBadExit:
      return "impossible exit report";
  }
  return "unknown";
}

GuestStream::GuestStream(GuestSink& sink, uint32_t exec, bool withStdin)
    : sink_(sink),
      exec_(exec),
      withStdin_(withStdin),
      credit_(withStdin ? guest::STDIN_WINDOW : 0),
      buffer_(newBuffer(kFirstBuffer)) {}

kj::ArrayPtr<kj::byte> GuestStream::space() {
  size_t held = filled_ - begin_;
  size_t wanted = kSmallestRead;
  if (held >= ipc::kFrameHeaderBytes) {
    // The rest of the frame must fit; its length was checked by decodeFrames().
    size_t frame = ipc::kFrameHeaderBytes + readLe32(data(buffer_) + begin_);
    wanted = kj::max(wanted, frame - held);
  }
  if (buffer_.size() - filled_ < wanted) {
    auto next = newBuffer(kBuffer);
    if (held > 0) memcpy(data(next), data(buffer_) + begin_, held);
    if (held_) owed_ += buffer_.size() - charged_;
    held_ = false;
    charged_ = 0;
    buffer_ = next;
    begin_ = 0;
    filled_ = held;
  }
  return {data(buffer_) + filled_, buffer_.size() - filled_};
}

size_t GuestStream::due(bool copied) const {
  return owed_ + (held_ || !copied ? begin_ - charged_ : 0);
}

void GuestStream::paid(bool copied) {
  owed_ = 0;
  held_ = held_ || !copied;
  if (held_) charged_ = begin_;
}

bool GuestStream::commit(size_t bytes) {
  filled_ += bytes;
  if (fault_ == GuestFault::kNone) {
    KJ_IF_MAYBE (exception, kj::runCatchingExceptions([&] { fault_ = decodeFrames(); })) {
      (void)exception;  // capnp's: limits or pointers out of bounds
      fault_ = GuestFault::kBadMessage;
    }
  }
  return fault_ == GuestFault::kNone;
}

GuestFault GuestStream::decodeFrames() {
  while (filled_ - begin_ >= ipc::kFrameHeaderBytes) {
    const kj::byte* header = data(buffer_) + begin_;
    uint32_t length = readLe32(header);
    if (readLe32(header + 4) != ipc::kFrameMagic || length == 0 ||
        length % sizeof(capnp::word) != 0 || length > guest::MAX_FRAME_BYTES) {
      return GuestFault::kBadFrame;
    }
    if (filled_ - begin_ < ipc::kFrameHeaderBytes + length) break;
    begin_ += ipc::kFrameHeaderBytes;
    auto payload = kj::arrayPtr(data(buffer_) + begin_, length);
    begin_ += length;
    if (auto fault = decode(payload); fault != GuestFault::kNone) return fault;
  }
  return GuestFault::kNone;
}

struct GuestStream::Visitor {
  GuestStream& self;

  GuestFault hello(guest::Hello::Reader hello) {
    if (self.greeted_) return GuestFault::kBadSequence;
    if (hello.getVersion() != guest::PROTOCOL_VERSION) return GuestFault::kBadVersion;
    self.greeted_ = true;
    return GuestFault::kNone;
  }

  GuestFault started(uint32_t exec) {
    if (exec != self.exec_) return GuestFault::kWrongExec;
    if (self.started_) return GuestFault::kBadSequence;
    self.started_ = self.answered_ = true;
    self.sink_.onStarted();
    return GuestFault::kNone;
  }

  GuestFault output(guest::Output::Reader output) {
    if (output.getExec() != self.exec_) return GuestFault::kWrongExec;
    auto stream = static_cast<unsigned>(output.getStream());
    if (stream > 1) return GuestFault::kBadMessage;
    auto bytes = output.getBytes();
    auto offset = output.getOffset();
    auto& end = self.end_[stream];
    if (bytes.size() == 0 || offset < end || offset > kLargestOffset) {
      return GuestFault::kBadOffset;
    }
    end = offset + bytes.size();
    self.started_ = self.answered_ = true;
    bool copied = bytes.size() < kCopyBelow;
    auto at = static_cast<size_t>(bytes.begin() - data(self.buffer_));
    auto piece =
        copied ? grpc::Slice(bytes.begin(), bytes.size()) : self.buffer_.sub(at, at + bytes.size());
    auto cost = (copied ? bytes.size() : 0) + kSliceOverhead + self.due(copied);
    if (self.sink_.onOutput(stream, offset, std::move(piece), cost)) self.paid(copied);
    return GuestFault::kNone;
  }

  GuestFault credit(guest::StdinCredit::Reader credit) {
    if (credit.getExec() != self.exec_) return GuestFault::kWrongExec;
    if (!self.withStdin_ || credit.getBytes() == 0 ||
        self.credit_ + credit.getBytes() > kMaxCredit) {
      return GuestFault::kBadCredit;
    }
    self.credit_ += credit.getBytes();
    self.sink_.onCredit(credit.getBytes());
    return GuestFault::kNone;
  }

  GuestFault exited(guest::Exited::Reader in) {
    if (in.getExec() != self.exec_) return GuestFault::kWrongExec;
    GuestExit out;
    out.signaled = in.getSignaled();
    out.code = in.getCode();
    if (out.signaled ? out.code < 1 || out.code > 64 : out.code > 255) return GuestFault::kBadExit;
    if (!readTotals(in.getStdout(), self.end_[0], out.streams[0]) ||
        !readTotals(in.getStderr(), self.end_[1], out.streams[1])) {
      return GuestFault::kBadExit;
    }
    out.userUs = in.getUserUs();
    out.systemUs = in.getSystemUs();
    out.maxRssBytes = in.getMaxRssBytes();
    out.wallUs = in.getWallUs();
    out.killedByHost = in.getKilledBy() == guest::KilledBy::HOST;
    out.killedByDeadline = in.getKilledBy() == guest::KilledBy::DEADLINE;
    out.leftRunning = in.getLeftRunning();
    if (out.leftRunning > kMaxLeftRunning || in.getScratch().size() > kMaxScratch ||
        in.getFileAtLimit().size() > kMaxPath) {
      return GuestFault::kBadExit;
    }
    out.fileAtLimit = asText(in.getFileAtLimit());
    for (auto item : in.getScratch()) {
      if (item.getPath().size() > kMaxPath) return GuestFault::kBadExit;
      out.scratch.push_back({asText(item.getPath()), item.getTotalBytes(), item.getFreeBytes(),
                             item.getTotalInodes(), item.getFreeInodes()});
    }
    self.answered_ = self.ended_ = true;
    self.sink_.onExited(std::move(out));
    return GuestFault::kNone;
  }

  GuestFault failed(guest::Failed::Reader in) {
    if (in.getExec() != self.exec_) return GuestFault::kWrongExec;
    if (self.started_) return GuestFault::kBadSequence;
    GuestFailure out;
    out.error = in.getErrno();
    out.step = stepName(in.getStep());
    out.request = in.getStep() == guest::FailStep::REQUEST;
    if (out.step == nullptr || out.error > 4095) return GuestFault::kBadExit;
    self.answered_ = self.ended_ = true;
    self.sink_.onFailed(out);
    return GuestFault::kNone;
  }
};

GuestFault GuestStream::decode(kj::ArrayPtr<const kj::byte> payload) {
  // The buffer is word aligned (malloc's memory after gRPC's header), and
  // frames are whole words.
  auto words = kj::arrayPtr(reinterpret_cast<const capnp::word*>(payload.begin()),
                            payload.size() / sizeof(capnp::word));
  if (reinterpret_cast<uintptr_t>(words.begin()) % alignof(capnp::word) != 0) {
    return GuestFault::kBadFrame;
  }
  capnp::FlatArrayMessageReader reader(words, ipc::readerOptions(guest::MAX_FRAME_BYTES));
  if (reader.getEnd() != words.end()) return GuestFault::kBadMessage;  // something behind it
  auto message = reader.getRoot<guest::GuestMessage>();

  Visitor visit{*this};
  if (message.isHello()) return visit.hello(message.getHello());
  if (!greeted_ || !mayAnswer_ || ended_) return GuestFault::kBadSequence;
  switch (message.which()) {
    case guest::GuestMessage::HELLO:
      break;
    case guest::GuestMessage::STARTED:
      return visit.started(message.getStarted());
    case guest::GuestMessage::OUTPUT:
      return visit.output(message.getOutput());
    case guest::GuestMessage::STDIN_CREDIT:
      return visit.credit(message.getStdinCredit());
    case guest::GuestMessage::EXITED:
      return visit.exited(message.getExited());
    case guest::GuestMessage::FAILED:
      return visit.failed(message.getFailed());
  }
  return GuestFault::kBadMessage;
}

}  // namespace cordon::agents
