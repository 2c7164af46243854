#include "vm_agent/output_frame.h"

#include <capnp/message.h>
#include <kj/debug.h>

#include <cstring>

#include "ipc/framing.h"

namespace cordon::agent {

namespace {

constexpr size_t kWord = sizeof(capnp::word);
// The frame's header and, in front of a one-segment message, its segment table.
constexpr size_t kSegmentStart = ipc::kFrameHeaderBytes + kWord;

// Builds the message in `segment` and returns where its bytes are.
kj::byte* build(kj::ArrayPtr<capnp::word> segment, uint32_t exec, guest::OutputStream stream,
                uint64_t offset, size_t bytes) {
  capnp::FlatMessageBuilder message(segment);
  auto output = message.initRoot<guest::GuestMessage>().initOutput();
  output.setExec(exec);
  output.setStream(stream);
  output.setOffset(offset);
  // Last, so that it lies at the end: allocation in a segment is sequential.
  auto data = output.initBytes(static_cast<uint32_t>(bytes));
  message.requireFilled();
  return data.begin();
}

size_t measure() {
  capnp::MallocMessageBuilder message;
  auto output = message.initRoot<guest::GuestMessage>().initOutput();
  auto data = output.initBytes(kWord);
  auto segments = message.getSegmentsForOutput();
  KJ_ASSERT(segments.size() == 1);
  auto start = segments[0].asBytes().begin();
  KJ_ASSERT(data.begin() + kWord == segments[0].asBytes().end());
  return kSegmentStart + static_cast<size_t>(data.begin() - start);
}

}  // namespace

size_t outputDataOffset() {
  static const size_t offset = measure();
  return offset;
}

size_t outputFrameBytes(size_t bytes) {
  return outputDataOffset() + (bytes + kWord - 1) / kWord * kWord;
}

void finishOutputFrame(kj::byte* frame, uint32_t exec, guest::OutputStream stream, uint64_t offset,
                       size_t bytes) {
  size_t dataOffset = outputDataOffset();
  size_t frameBytes = outputFrameBytes(bytes);
  memset(frame, 0, dataOffset);
  memset(frame + dataOffset + bytes, 0, frameBytes - dataOffset - bytes);

  const uint32_t front[4] = {static_cast<uint32_t>(frameBytes - ipc::kFrameHeaderBytes),
                             ipc::kFrameMagic,
                             0,  // one segment
                             static_cast<uint32_t>((frameBytes - kSegmentStart) / kWord)};
  memcpy(frame, front, sizeof(front));
  auto* words = reinterpret_cast<capnp::word*>(frame + kSegmentStart);
  kj::byte* at =
      build(kj::arrayPtr(words, (frameBytes - kSegmentStart) / kWord), exec, stream, offset, bytes);
  KJ_ASSERT(at == frame + dataOffset);
}

}  // namespace cordon::agent
