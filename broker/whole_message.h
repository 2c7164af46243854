// The one message that all of a record's bytes are: from a file that may be
// damaged, so with limits on what reading it may cost.
#pragma once
#include <capnp/serialize.h>
#include <kj/exception.h>
#include <string.h>

#include <string>

namespace cordon::broker {

// Calls `decode` with the root; it says what is wrong with the fields, "" =
// nothing. Returns that, or `trailing` where bytes follow the message, or
// `malformed`. The size is a multiple of 8, and bounded by the caller.
template <typename Root, typename Decode>
std::string decodeWhole(kj::ArrayPtr<const kj::byte> bytes, const char* trailing,
                        const char* malformed, Decode&& decode) {
  std::string damage;
  auto fault = kj::runCatchingExceptions([&] {
    auto words = kj::heapArray<capnp::word>(bytes.size() / sizeof(capnp::word));
    memcpy(words.begin(), bytes.begin(), bytes.size());
    capnp::ReaderOptions options;
    options.traversalLimitInWords = 4 * words.size();
    options.nestingLimit = 8;
    capnp::FlatArrayMessageReader reader(words, options);
    damage = reader.getEnd() == words.end() ? decode(reader.getRoot<Root>()) : trailing;
  });
  return fault == nullptr ? damage : malformed;
}

}  // namespace cordon::broker
