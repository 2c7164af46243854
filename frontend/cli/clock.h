// The wall clock, as ages are shown by it.
#pragma once
#include <chrono>
#include <cstdint>

namespace cordon::cli {

inline int64_t nowUnixMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace cordon::cli
