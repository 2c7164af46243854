// Limits as people write them: "128M", "500ms", "0.5".
//
// Strict: the whole text must be one number and its unit, without sign, spaces
// or exponent, and the result must fit; nothing is rounded. 0 is a number like
// any other here (the frontends refuse an explicit 0 with a reason of its own).
// No dependency, no locale, no allocation beyond the error's text.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace cordon::broker {

struct ParsedAmount {
  uint64_t value = 0;
  std::string error;  // "" = ok; else one sentence without the text itself
  explicit operator bool() const { return error.empty(); }
};

// Bytes: a whole number and optionally one of K, M, G, T (powers of 1024;
// lower case, too). "128M" = 134217728.
ParsedAmount parseBytes(std::string_view text);

// Milliseconds: a number with up to 3 decimals and one of ms, s, m, h. "1.5s" =
// 1500. The unit must be there, and less than a millisecond is refused.
ParsedAmount parseDuration(std::string_view text);

// Thousandths of a CPU: a number with up to 3 decimals. "0.5" = 500. At most
// UINT32_MAX.
ParsedAmount parseCpus(std::string_view text);

// A whole number of at most UINT32_MAX (processes, files).
ParsedAmount parseCount(std::string_view text);

}  // namespace cordon::broker
