// A fuzzer's input as what arrives on a stream: frames, in pieces.
#pragma once
#include <capnp/message.h>
#include <kj/array.h>
#include <kj/exception.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "ipc/framing.h"

namespace cordon::fuzz {

inline std::string frame(capnp::MessageBuilder& message) {
  auto words = ipc::frameMessage(message);
  auto bytes = words.asBytes();
  return {reinterpret_cast<const char*>(bytes.begin()), bytes.size()};
}

// The first frame gets all of the input as its payload.
inline void repairFrame(std::string& input) {
  input.resize((input.size() + 7) / 8 * 8);
  if (input.size() < 16) return;
  const uint32_t header[2] = {static_cast<uint32_t>(input.size() - 8), ipc::kFrameMagic};
  memcpy(input.data(), header, sizeof(header));
}

// Calls onFrame for each frame, as a reader of the stream would; what it throws
// ends the stream, as there. Aborts when the reader breaks its promises.
template <typename OnFrame>
void readFrames(const uint8_t* data, size_t size, size_t maxPayload, OnFrame&& onFrame) {
  ipc::FrameReader reader(maxPayload, 64);
  // The pieces' size comes from the input, so that both ways are tried.
  size_t piece = size > 0 ? size_t{1} + data[size - 1] % 97 : 1;
  size_t at = 0;
  while (at < size) {
    auto space = reader.space();
    if (reader.error() != ipc::FrameError::kNone) return;
    if (space.size() == 0) abort();
    size_t n = std::min({space.size(), size - at, piece});
    memcpy(space.begin(), data + at, n);
    reader.commit(n);
    at += n;
    for (;;) {
      auto next = reader.next();
      if (next == nullptr) break;
      bool good = true;
      KJ_IF_MAYBE (words, next) {
        if (words->asBytes().size() > maxPayload || words->size() == 0) abort();
        auto failure = kj::runCatchingExceptions([&]() { onFrame(*words); });
        good = failure == nullptr;
      }
      if (!good) return;
    }
  }
}

}  // namespace cordon::fuzz
