#include "escape_suite/facts.h"

#include <algorithm>
#include <charconv>

namespace cordon::escape {
namespace {

bool isKey(std::string_view text) {
  if (text.empty() || text.size() > kMaxFactKey || text[0] < 'a' || text[0] > 'z') return false;
  return std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  });
}

std::optional<int64_t> parseNumber(std::string_view text) {
  // from_chars takes no plus sign and no spaces; leading zeros and "-0" are
  // refused here, so that a number has one spelling.
  std::string_view digits = text.substr(text.starts_with('-') ? 1 : 0);
  if (digits.empty() || (digits[0] == '0' && text.size() > 1)) return std::nullopt;
  int64_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// "" or what is wrong with the line.
const char* parseLine(std::string_view line, std::vector<Fact>& out) {
  constexpr std::string_view kPrefix = "FACT";
  if (!line.starts_with(kPrefix)) return "a line that is no fact";
  line.remove_prefix(kPrefix.size());
  size_t count = 0;
  while (!line.empty()) {
    if (line[0] != ' ') return "a malformed fact";
    line.remove_prefix(1);
    std::string_view item = line.substr(0, line.find(' '));
    line.remove_prefix(item.size());
    size_t equals = item.find('=');
    if (equals == std::string_view::npos || !isKey(item.substr(0, equals))) {
      return "a malformed fact";
    }
    auto value = parseNumber(item.substr(equals + 1));
    if (!value.has_value()) return "a value that is no number";
    if (++count > kMaxFactsPerLine) return "a line with too many facts";
    out.push_back(Fact{std::string(item.substr(0, equals)), *value});
  }
  return count == 0 ? "an empty line of facts" : "";
}

}  // namespace

std::optional<int64_t> Facts::last(std::string_view key) const {
  for (auto item = items.rbegin(); item != items.rend(); ++item) {
    if (item->key == key) return item->value;
  }
  return std::nullopt;
}

int64_t Facts::most(std::string_view key, int64_t otherwise) const {
  std::optional<int64_t> found;
  for (const Fact& item : items) {
    if (item.key == key) found = std::max(found.value_or(item.value), item.value);
  }
  return found.value_or(otherwise);
}

Facts parseFacts(std::string_view bytes) {
  Facts facts;
  if (bytes.size() > kMaxFactBytes) {
    facts.problem = "more facts than are read";
    return facts;
  }
  while (true) {
    size_t end = bytes.find('\n');
    if (end == std::string_view::npos) return facts;
    const char* problem = parseLine(bytes.substr(0, end), facts.items);
    if (*problem != '\0') {
      facts.items.clear();
      facts.problem = problem;
      return facts;
    }
    bytes.remove_prefix(end + 1);
  }
}

}  // namespace cordon::escape
