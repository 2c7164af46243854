#include "ipc/framing.h"

#include <kj/io.h>

#include <algorithm>
#include <cstring>

namespace cordon::ipc {

namespace {

constexpr size_t kWord = sizeof(capnp::word);
static_assert(kFrameHeaderBytes == kWord, "the header keeps the payload word aligned");

size_t roundUpToWord(size_t bytes) {
  return (bytes + kWord - 1) / kWord * kWord;
}

}  // namespace

FrameReader::FrameReader(size_t maxPayload, size_t initialBytes)
    : maxPayload_(maxPayload),
      initialBytes_(std::max(roundUpToWord(initialBytes), 2 * kFrameHeaderBytes)) {}

kj::Maybe<size_t> FrameReader::frameBytes() {
  if (end_ - begin_ < kFrameHeaderBytes) return nullptr;
  uint32_t header[2];
  memcpy(header, buffer_.asBytes().begin() + begin_, sizeof(header));
  size_t payload = header[0];
  if (header[1] != kFrameMagic) {
    error_ = FrameError::kBadMagic;
  } else if (payload == 0 || payload % kWord != 0) {
    error_ = FrameError::kBadLength;
  } else if (payload > maxPayload_) {
    error_ = FrameError::kTooLong;
  } else {
    return payload + kFrameHeaderBytes;
  }
  return nullptr;
}

void FrameReader::resize(size_t capacity) {
  auto larger = kj::heapArray<capnp::word>(capacity / kWord);
  if (end_ > begin_) {
    memcpy(larger.asBytes().begin(), buffer_.asBytes().begin() + begin_, end_ - begin_);
  }
  buffer_ = kj::mv(larger);
  end_ -= begin_;
  begin_ = 0;
}

kj::ArrayPtr<kj::byte> FrameReader::space() {
  if (error_ != FrameError::kNone) return nullptr;
  size_t need = kFrameHeaderBytes;
  KJ_IF_MAYBE (bytes, frameBytes()) need = *bytes;
  if (error_ != FrameError::kNone) return nullptr;

  size_t capacity = buffer_.asBytes().size();
  if (begin_ == end_) {
    begin_ = end_ = 0;
    // One large frame must not keep its memory for the life of the stream.
    if (capacity == 0 || capacity > 4 * std::max(initialBytes_, size_t{32} * 1024)) {
      resize(initialBytes_);
    }
  } else if (need > capacity) {
    resize(need);
  } else if (begin_ + need > capacity || end_ == capacity) {
    auto bytes = buffer_.asBytes();
    memmove(bytes.begin(), bytes.begin() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  auto bytes = buffer_.asBytes();
  // A caller that did not take the complete frame with next() finds no room:
  // give it some rather than an empty space that reads as EOF.
  if (end_ == bytes.size()) {
    resize(bytes.size() + initialBytes_);
    bytes = buffer_.asBytes();
  }
  return bytes.slice(end_, bytes.size());
}

void FrameReader::commit(size_t bytes) {
  KJ_REQUIRE(bytes <= buffer_.asBytes().size() - end_, "more than space() gave");
  end_ += bytes;
}

kj::Maybe<kj::ArrayPtr<const capnp::word>> FrameReader::next() {
  if (error_ != FrameError::kNone) return nullptr;
  KJ_IF_MAYBE (bytes, frameBytes()) {
    if (end_ - begin_ < *bytes) return nullptr;
    size_t first = (begin_ + kFrameHeaderBytes) / kWord;
    begin_ += *bytes;
    return buffer_.slice(first, begin_ / kWord).asConst();
  }
  return nullptr;
}

kj::Array<capnp::word> frameMessage(capnp::MessageBuilder& message) {
  size_t payload = capnp::computeSerializedSizeInWords(message) * kWord;
  auto frame = kj::heapArray<capnp::word>((payload + kFrameHeaderBytes) / kWord);
  auto bytes = frame.asBytes();
  const uint32_t header[2] = {static_cast<uint32_t>(payload), kFrameMagic};
  memcpy(bytes.begin(), header, sizeof(header));
  kj::ArrayOutputStream out(bytes.slice(kFrameHeaderBytes, bytes.size()));
  capnp::writeMessage(out, message);
  return frame;
}

capnp::ReaderOptions readerOptions(size_t maxPayload) {
  capnp::ReaderOptions options;
  options.traversalLimitInWords = 4 * (maxPayload / kWord) + 64;
  options.nestingLimit = 8;
  return options;
}

}  // namespace cordon::ipc
