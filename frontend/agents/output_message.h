// One ExecResponse with program output, put together from pieces of the
// buffers that it was read to, without copying them.
#pragma once
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace cordon::agents {

class OutputMessage {
 public:
  // Full from here on; a piece may take it past that by its own size.
  static constexpr size_t kFull = 256 * 1024;

  bool empty() const { return slices_.empty(); }
  bool full() const { return bytes_ >= kFull; }
  // The piece continues what is here: same stream, no gap.
  bool accepts(unsigned stream, uint64_t offset) const;
  // `cost`: memory that the piece holds.
  void add(unsigned stream, uint64_t offset, grpc::Slice bytes, size_t cost);
  // Memory that the message holds.
  size_t cost() const { return cost_; }
  // The serialized message; this one is empty then.
  grpc::ByteBuffer take();

 private:
  unsigned stream_ = 0;
  uint64_t offset_ = 0;
  size_t bytes_ = 0, cost_ = 0;
  std::vector<grpc::Slice> slices_;  // [0] is kept free for the head
};

}  // namespace cordon::agents
