// The result channel of the hostile programs: a strict reader of their facts.
//
// What arrives was written inside a sandbox and is hostile. The grammar is all
// there is:
//
//   line  = "FACT" 1*16( " " key "=" number ) LF
//   key   = [a-z] *40[a-z0-9_]
//   number = "0" / [ "-" ] [1-9] *18[0-9], within int64
//
// A last line without its end was cut off when its writer died and is ignored;
// anything else that is not a line is an error, after which nothing counts.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cordon::escape {

constexpr size_t kMaxFactBytes = 256 * 1024;
constexpr size_t kMaxFactsPerLine = 16;
constexpr size_t kMaxFactKey = 41;

struct Fact {
  std::string key;
  int64_t value = 0;
};

struct Facts {
  std::vector<Fact> items;  // in order; a key may come again
  std::string problem;      // "" = well formed

  bool has(std::string_view key) const { return last(key).has_value(); }
  // Programs tell their progress: the last value is the newest, and since a
  // dying program's lines may be lost, the largest is what was reached.
  std::optional<int64_t> last(std::string_view key) const;
  int64_t most(std::string_view key, int64_t otherwise = 0) const;
};

// Never throws but for lack of memory. On a problem `items` is empty.
Facts parseFacts(std::string_view bytes);

}  // namespace cordon::escape
