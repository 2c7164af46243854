#include "frontend/cli/output_reader.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/support/proto_buffer_reader.h>

namespace cordon::client {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

bool readOutput(grpc::ByteBuffer& message, const OnPiece& onPiece) {
  constexpr auto kVarint = WireFormatLite::WIRETYPE_VARINT;
  constexpr auto kBytes = WireFormatLite::WIRETYPE_LENGTH_DELIMITED;
  constexpr uint32_t kOutput =
      WireFormatLite::MakeTag(v1::ExecResponse::kOutputFieldNumber, kBytes);
  constexpr uint32_t kStream = WireFormatLite::MakeTag(v1::Output::kStreamFieldNumber, kVarint);
  constexpr uint32_t kOffset = WireFormatLite::MakeTag(v1::Output::kOffsetFieldNumber, kVarint);
  constexpr uint32_t kData = WireFormatLite::MakeTag(v1::Output::kDataFieldNumber, kBytes);

  grpc::ProtoBufferReader reader(&message);
  if (!reader.status().ok()) return false;
  CodedInputStream in(&reader);
  const auto end = static_cast<int64_t>(message.Length());
  // What is left after a length: it must be all that is left of the message.
  auto isRest = [&](int length) { return length > 0 && in.CurrentPosition() + length == end; };
  int length = 0;
  if (in.ReadTag() != kOutput || !in.ReadVarintSizeAsInt(&length) || !isRest(length)) return false;
  uint32_t stream = 0;
  uint64_t offset = 0;
  uint32_t tag = in.ReadTag();
  if (tag == kStream) {
    if (!in.ReadVarint32(&stream)) return false;
    tag = in.ReadTag();
  }
  if (tag == kOffset) {
    if (!in.ReadVarint64(&offset)) return false;
    tag = in.ReadTag();
  }
  if (tag != kData || !in.ReadVarintSizeAsInt(&length) || !isRest(length)) return false;

  const void* piece = nullptr;
  for (int size = 0; in.GetDirectBufferPointer(&piece, &size) && size > 0;) {
    auto bytes = static_cast<size_t>(size);
    onPiece(static_cast<v1::OutputStream>(stream), offset,
            {static_cast<const char*>(piece), bytes});
    offset += bytes;
    in.Skip(size);
  }
  return true;
}

}  // namespace cordon::client
