#include "frontend/cli/output_reader.h"

#include <grpcpp/support/slice.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace cordon::client {
namespace {

// The message in slices of so many bytes.
grpc::ByteBuffer inSlices(const std::string& message, size_t bytes) {
  std::vector<grpc::Slice> slices;
  for (size_t at = 0; at < message.size(); at += bytes) {
    slices.emplace_back(message.substr(at, bytes));
  }
  return {slices.data(), slices.size()};
}

struct Read {
  bool output = false;
  std::string bytes;
  std::vector<uint64_t> offsets;
  v1::OutputStream stream = v1::STDOUT;
};

Read read(grpc::ByteBuffer message) {
  Read result;
  result.output =
      readOutput(message, [&](v1::OutputStream stream, uint64_t offset, std::string_view bytes) {
        result.stream = stream;
        result.offsets.push_back(offset);
        result.bytes.append(bytes);
      });
  return result;
}

v1::ExecResponse output(v1::OutputStream stream, uint64_t offset, const std::string& bytes) {
  v1::ExecResponse response;
  response.mutable_output()->set_stream(stream);
  response.mutable_output()->set_offset(offset);
  response.mutable_output()->set_data(bytes);
  return response;
}

TEST(OutputReader, ReadsWhatTheGenericCodeWrites) {
  for (uint64_t offset : {uint64_t{0}, uint64_t{1} << 40}) {
    for (auto stream : {v1::STDOUT, v1::STDERR}) {
      for (size_t size : {1, 127, 128, 70000}) {
        std::string bytes(size, 'x');
        for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * 7);
        std::string message = output(stream, offset, bytes).SerializeAsString();
        // Slices that cut the head, the data, and nothing.
        for (size_t slice : {size_t{1}, size_t{5}, size_t{4096}, message.size()}) {
          if (slice == 1 && size > 1000) continue;
          Read got = read(inSlices(message, slice));
          ASSERT_TRUE(got.output) << size << " in " << slice;
          EXPECT_TRUE(got.bytes == bytes);
          EXPECT_EQ(got.stream, stream);
          EXPECT_EQ(got.offsets.front(), offset);
        }
      }
    }
  }
}

TEST(OutputReader, OffsetsGoOnFromPieceToPiece) {
  Read got =
      read(inSlices(output(v1::STDOUT, 1000, std::string(300, 'x')).SerializeAsString(), 100));
  ASSERT_GE(got.offsets.size(), 3u);
  EXPECT_EQ(got.offsets[0], 1000u);
  EXPECT_EQ(got.offsets[2] - got.offsets[1], 100u);
}

TEST(OutputReader, EverythingElseIsLeftToTheParser) {
  v1::ExecResponse result;
  result.mutable_result()->set_exit_code(3);
  v1::ExecResponse started;
  started.mutable_started()->set_name("sb-1");
  std::string plain = output(v1::STDOUT, 7, "bytes").SerializeAsString();
  std::string other = plain + std::string("\x78\x01", 2);  // a field of a newer service
  const std::vector<std::string> messages = {
      result.SerializeAsString(), started.SerializeAsString(), "", "\x12", "\x12\x05\x08",
      output(v1::STDOUT, 7, "").SerializeAsString(), plain.substr(0, plain.size() - 1), other,
      // Data first, then the offset.
      std::string("\x12\x05\x1a\x01x\x10\x07", 7)};
  for (const auto& message : messages) {
    auto buffer = inSlices(message, 64);
    EXPECT_FALSE(read(buffer).output) << message;
  }
  EXPECT_FALSE(read(grpc::ByteBuffer()).output);
}

}  // namespace
}  // namespace cordon::client
