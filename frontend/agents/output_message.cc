#include "frontend/agents/output_message.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include "ipc/agent.pb.h"

namespace cordon::agents {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedOutputStream;

// Of the message itself, beside what its pieces hold.
constexpr size_t kOverhead = 512;
constexpr size_t kLongestHead = 64;

uint8_t* writeTag(uint8_t* to, int field, WireFormatLite::WireType type) {
  return CodedOutputStream::WriteVarint32ToArray(WireFormatLite::MakeTag(field, type), to);
}

uint8_t* writeVarint(uint8_t* to, int field, uint64_t value) {
  if (value == 0) return to;  // proto3 leaves zero out
  to = writeTag(to, field, WireFormatLite::WIRETYPE_VARINT);
  return CodedOutputStream::WriteVarint64ToArray(value, to);
}

uint8_t* writeLength(uint8_t* to, int field, size_t bytes) {
  to = writeTag(to, field, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
  return CodedOutputStream::WriteVarint64ToArray(bytes, to);
}

}  // namespace

bool OutputMessage::accepts(unsigned stream, uint64_t offset) const {
  return empty() || (stream == stream_ && offset == offset_ + bytes_ && !full());
}

void OutputMessage::add(unsigned stream, uint64_t offset, grpc::Slice bytes, size_t cost) {
  if (empty()) {
    stream_ = stream;
    offset_ = offset;
    cost_ = kOverhead;
    slices_.emplace_back();
  }
  bytes_ += bytes.size();
  cost_ += cost;
  slices_.push_back(std::move(bytes));
}

grpc::ByteBuffer OutputMessage::take() {
  // The fields of Output before its bytes, then the message around it.
  uint8_t inner[kLongestHead];
  uint8_t* end = writeVarint(inner, v1::Output::kStreamFieldNumber, stream_);
  end = writeVarint(end, v1::Output::kOffsetFieldNumber, offset_);
  end = writeLength(end, v1::Output::kDataFieldNumber, bytes_);
  auto innerBytes = static_cast<size_t>(end - inner);

  uint8_t head[kLongestHead];
  end = writeLength(head, v1::ExecResponse::kOutputFieldNumber, innerBytes + bytes_);
  end = std::copy(inner, inner + innerBytes, end);
  slices_[0] = grpc::Slice(head, static_cast<size_t>(end - head));

  grpc::ByteBuffer message(slices_.data(), slices_.size());
  *this = OutputMessage();
  return message;
}

}  // namespace cordon::agents
