// Length-prefixed frames on a byte stream, with limits.
//
// A frame is an 8-byte header (little endian: u32 payload bytes, u32 magic
// kFrameMagic) and the payload: one Cap'n Proto message in the standard stream
// framing (capnp::messageToFlatArray). Payload length is a non-zero multiple of
// 8, so that the payload is word aligned in the reader's buffer.
//
// Not thread-safe. Used by the frontends (hostile guest) and by vm-agent.
#pragma once
#include <capnp/message.h>
#include <capnp/serialize.h>
#include <kj/array.h>
#include <kj/common.h>

#include <cstddef>
#include <cstdint>

namespace cordon::ipc {

constexpr uint32_t kFrameMagic = 0x31445243;  // "CRD1"
constexpr size_t kFrameHeaderBytes = 8;

enum class FrameError : uint8_t {
  kNone,
  kBadMagic,
  kBadLength,  // zero or not a multiple of 8
  kTooLong,    // past the reader's maximum
};

// Incremental reader over a buffer of its own. Use:
//   auto space = reader.space();  n = read(fd, space.begin(), space.size());
//   reader.commit(n);
//   while (auto frame = reader.next()) ...   // valid until the next space()
// After an error next() yields nothing more and error() names it: the stream
// cannot be resynchronised and must be closed.
class FrameReader {
 public:
  // maxPayload: largest payload accepted. Allocates lazily: `initialBytes` at
  // first, growing up to one largest frame only when a header asks for it.
  explicit FrameReader(size_t maxPayload, size_t initialBytes = 16 * 1024);

  // Free space to read into; never empty unless error() is set.
  kj::ArrayPtr<kj::byte> space();
  void commit(size_t bytes);
  kj::Maybe<kj::ArrayPtr<const capnp::word>> next();
  FrameError error() const { return error_; }
  // True when bytes of an incomplete frame are held (EOF now = truncated).
  bool partial() const { return end_ > begin_; }

 private:
  // Bytes of the frame at begin_, header included, once its header is complete.
  // Sets error_ (and yields nothing) when the header is unacceptable.
  kj::Maybe<size_t> frameBytes();
  void resize(size_t capacity);

  kj::Array<capnp::word> buffer_;
  size_t maxPayload_;
  size_t initialBytes_;
  size_t begin_ = 0, end_ = 0;  // bytes
  FrameError error_ = FrameError::kNone;
};

// The message as one frame, header included.
kj::Array<capnp::word> frameMessage(capnp::MessageBuilder& message);

// ReaderOptions for a payload of at most `maxPayload` bytes: traversal limited
// to a small multiple of it, nesting to 8.
capnp::ReaderOptions readerOptions(size_t maxPayload);

}  // namespace cordon::ipc
