// Whose connection an operation came in on, for as long as anything asks.
#pragma once
#include <kj/refcount.h>
#include <sys/types.h>

#include <cstdint>

namespace cordon::broker {

// One per connection of a frontend. What was begun on it ends with it.
class PeerScope final : public kj::Refcounted {
 public:
  PeerScope(uint64_t number, uid_t peer) : id(number), uid(peer) {}
  const uint64_t id;
  const uid_t uid;
  bool connected = true;
};

}  // namespace cordon::broker
