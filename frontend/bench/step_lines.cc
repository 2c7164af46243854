#include "frontend/bench/step_lines.h"

#include <algorithm>
#include <charconv>

namespace cordon::bench {

void StepTable::add(std::string_view line) {
  constexpr std::string_view kMark = "; ms: ";
  size_t at = line.find(kMark);
  if (at == std::string_view::npos) return;
  std::string_view head = line.substr(0, at), rest = line.substr(at + kMark.size());
  std::string prefix;
  if (head.find(": ready,") != std::string_view::npos) prefix = "create: ";
  if (head.find(": destroyed (") != std::string_view::npos) prefix = "destroy: ";
  if (prefix.empty()) return;
  // "NAME 0.123, NAME 4.567 = 4.690 ms"
  if (size_t end = rest.rfind(" = "); end != std::string_view::npos) {
    std::string_view sum = rest.substr(end + 3);
    double ms = 0;
    if (std::from_chars(sum.data(), sum.data() + sum.size(), ms).ec == std::errc()) {
      add(prefix + "all", ms);
    }
    rest = rest.substr(0, end);
  }
  while (!rest.empty()) {
    size_t comma = rest.find(", ");
    std::string_view item = rest.substr(0, comma);
    rest = comma == std::string_view::npos ? "" : rest.substr(comma + 2);
    size_t space = item.rfind(' ');
    if (space == std::string_view::npos) continue;
    std::string_view number = item.substr(space + 1);
    double ms = 0;
    if (std::from_chars(number.data(), number.data() + number.size(), ms).ec == std::errc()) {
      add(prefix + std::string(item.substr(0, space)), ms);
    }
  }
}

void StepTable::add(const std::string& name, double ms) {
  auto found = std::find_if(table.begin(), table.end(),
                            [&name](const auto& row) { return row.first == name; });
  if (found == table.end()) found = table.insert(table.end(), {name, {}});
  found->second.push_back(ms);
}

}  // namespace cordon::bench
