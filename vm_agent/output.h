// What is kept of a program's output: the head and the tail, exactly counted.
#pragma once
#include <kj/array.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace cordon::agent {

// The first cap - tail bytes are sent as they come; of what follows the last
// `tail` bytes (a quarter of the cap, at most 32 KiB) are held and sent at the
// end. Without more than `cap` bytes nothing is dropped.
class OutputAccount {
 public:
  static constexpr uint64_t kMaxTail = 32 * 1024;

  // cap 0: no cap.
  explicit OutputAccount(uint64_t cap);

  // Bytes that may still be sent at once (at offset total()).
  uint64_t headRoom() const { return total_ < headEnd_ ? headEnd_ - total_ : 0; }
  uint64_t total() const { return total_; }
  bool headIsFull() const { return total_ >= headEnd_; }

  // `n` bytes of the head were taken; n <= headRoom().
  void takeHead(uint64_t n);
  // Bytes past the head; only the last ones are kept.
  void takeTail(kj::ArrayPtr<const kj::byte> bytes);

  struct Tail {
    uint64_t offset = 0;
    kj::ArrayPtr<const kj::byte> first, second;  // one after the other
  };
  // What is held past the head, in order.
  Tail tail() const;
  // Bytes that are neither in the head nor in the tail.
  uint64_t dropped() const;

 private:
  uint64_t held() const;

  uint64_t headEnd_;
  uint64_t tailSize_;
  uint64_t total_ = 0;
  std::unique_ptr<kj::byte[]> ring_;  // allocated when the head is full
};

}  // namespace cordon::agent
