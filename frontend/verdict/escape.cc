#include "frontend/verdict/escape.h"

#include <cstdint>
#include <cstdio>

namespace cordon::verdict {
namespace {

// The code point of a sequence that utf8Length() found valid.
uint32_t decode(std::string_view sequence) {
  auto byte = [&](size_t i) { return uint32_t(static_cast<unsigned char>(sequence[i])); };
  switch (sequence.size()) {
    case 1:
      return byte(0);
    case 2:
      return (byte(0) & 0x1f) << 6 | (byte(1) & 0x3f);
    case 3:
      return (byte(0) & 0x0f) << 12 | (byte(1) & 0x3f) << 6 | (byte(2) & 0x3f);
    default:
      return (byte(0) & 0x07) << 18 | (byte(1) & 0x3f) << 12 | (byte(2) & 0x3f) << 6 |
             (byte(3) & 0x3f);
  }
}

bool hidesOrReorders(uint32_t point) {
  return (point >= 0x200b && point <= 0x200f) || (point >= 0x2028 && point <= 0x202e) ||
         (point >= 0x2060 && point <= 0x2069) || point == 0x061c || point == 0xfeff ||
         (point >= 0xe0000 && point <= 0xe007f);
}

std::string format(const char* pattern, uint32_t value) {
  char text[16];
  snprintf(text, sizeof(text), pattern, value);
  return text;
}

std::string escaped(uint32_t point, std::string_view sequence) {
  if (point == '\n') return "\\n";
  if (point == '\t') return "\\t";
  if (point == '\r') return "\\r";
  if (point < 0x20 || point == 0x7f) return format("\\x%02x", point);
  if ((point >= 0x80 && point < 0xa0) || hidesOrReorders(point)) return format("\\u{%04x}", point);
  return std::string(sequence);
}

}  // namespace

size_t utf8Length(std::string_view text) {
  if (text.empty()) return 0;
  auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  size_t length = lead >= 0xc2 && lead <= 0xdf   ? 2
                  : lead >= 0xe0 && lead <= 0xef ? 3
                  : lead >= 0xf0 && lead <= 0xf4 ? 4
                                                 : 0;
  if (length == 0 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  // Overlong forms, surrogates, and past the last code point.
  if ((lead == 0xe0 && byte(1) < 0xa0) || (lead == 0xed && byte(1) > 0x9f) ||
      (lead == 0xf0 && byte(1) < 0x90) || (lead == 0xf4 && byte(1) > 0x8f)) {
    return 0;
  }
  return length;
}

bool isUtf8(std::string_view text) {
  while (!text.empty()) {
    size_t length = utf8Length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

std::string escapeControls(std::string_view text) {
  std::string safe;
  safe.reserve(text.size());
  while (!text.empty()) {
    size_t length = utf8Length(text);
    if (length == 0) {
      safe += format("\\x%02x", static_cast<unsigned char>(text.front()));
      text.remove_prefix(1);
      continue;
    }
    std::string_view sequence = text.substr(0, length);
    safe += escaped(decode(sequence), sequence);
    text.remove_prefix(length);
  }
  return safe;
}

}  // namespace cordon::verdict
