// Any text into the limit parsers: what they accept must mean what it says.
#include <string>
#include <string_view>

#include "broker/limit_text.h"
#include "tests/fuzz/fuzz.h"

using namespace cordon::broker;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  for (auto parse : {parseBytes, parseDuration, parseCpus, parseCount}) {
    ParsedAmount amount = parse(text);
    if (!amount) {
      if (amount.value != 0) __builtin_trap();
      continue;
    }
    // Accepted: starts with a digit, and holds nothing but a number and a unit.
    if (text.empty() || text[0] < '0' || text[0] > '9') __builtin_trap();
    if (text.find_first_not_of("0123456789.KMGTkmgtsh") != std::string_view::npos) __builtin_trap();
  }
  // What is written plainly reads back as itself.
  if (size >= 8) {
    uint64_t value = 0;
    for (size_t i = 0; i < 8; ++i) value = value << 8 | data[i];
    if (parseBytes(std::to_string(value)).value != value) __builtin_trap();
    if (parseDuration(std::to_string(value) + "ms").value != value) __builtin_trap();
  }
  return 0;
}

std::vector<std::string> cordon::fuzz::corpus() {
  return {"128M", "0.5", "2s", "500ms", "1.5h", "18446744073709551615", "-1", "12X"};
}

void cordon::fuzz::repair(std::string&) {}
