#include "vm_agent/output.h"

#include <kj/debug.h>

#include <algorithm>
#include <cstring>

namespace cordon::agent {

OutputAccount::OutputAccount(uint64_t cap) {
  tailSize_ = std::min(cap / 4, kMaxTail);
  headEnd_ = cap == 0 ? UINT64_MAX : cap - tailSize_;
}

void OutputAccount::takeHead(uint64_t n) {
  KJ_REQUIRE(n <= headRoom());
  total_ += n;
}

void OutputAccount::takeTail(kj::ArrayPtr<const kj::byte> bytes) {
  KJ_REQUIRE(headIsFull());
  uint64_t past = total_ - headEnd_;
  total_ += bytes.size();
  if (tailSize_ == 0) return;
  if (ring_ == nullptr) ring_.reset(new kj::byte[tailSize_]);
  if (bytes.size() > tailSize_) {
    past += bytes.size() - tailSize_;
    bytes = bytes.slice(bytes.size() - tailSize_, bytes.size());
  }
  // Byte number p past the head lives at p modulo the ring's size.
  size_t at = past % tailSize_;
  size_t first = std::min<size_t>(bytes.size(), tailSize_ - at);
  memcpy(ring_.get() + at, bytes.begin(), first);
  memcpy(ring_.get(), bytes.begin() + first, bytes.size() - first);
}

uint64_t OutputAccount::held() const {
  if (total_ <= headEnd_) return 0;
  return std::min(total_ - headEnd_, tailSize_);
}

OutputAccount::Tail OutputAccount::tail() const {
  Tail result;
  uint64_t size = held();
  result.offset = total_ - size;
  if (size == 0) return result;
  size_t at = (result.offset - headEnd_) % tailSize_;
  size_t first = std::min<size_t>(size, tailSize_ - at);
  result.first = kj::arrayPtr(ring_.get() + at, first);
  result.second = kj::arrayPtr(ring_.get(), size - first);
  return result;
}

uint64_t OutputAccount::dropped() const {
  if (total_ <= headEnd_) return 0;
  return total_ - headEnd_ - held();
}

}  // namespace cordon::agent
