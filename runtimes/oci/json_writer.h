// Writes JSON text, in the order in which it is told to. For configurations that
// we author: no reading, no pretty printing.
#pragma once
#include <concepts>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace cordon::runtimes {

class JsonWriter {
 public:
  JsonWriter& beginObject() { return open('{'); }
  JsonWriter& endObject() { return close('}'); }
  JsonWriter& beginArray() { return open('['); }
  JsonWriter& endArray() { return close(']'); }
  JsonWriter& key(std::string_view name);
  // UTF-8; control characters, quotes and backslashes are escaped.
  JsonWriter& string(std::string_view value);
  JsonWriter& boolean(bool value) { return token(value ? "true" : "false"); }
  JsonWriter& number(std::integral auto value) { return token(std::to_string(value)); }
  // Text that is JSON already.
  JsonWriter& raw(std::string_view json) { return token(json); }
  JsonWriter& strings(const std::vector<std::string>& values);

  JsonWriter& field(std::string_view name, std::string_view value) {
    return key(name).string(value);
  }
  JsonWriter& field(std::string_view name, const char* value) { return key(name).string(value); }
  JsonWriter& field(std::string_view name, bool value) { return key(name).boolean(value); }
  JsonWriter& field(std::string_view name, std::integral auto value) {
    return key(name).number(value);
  }
  JsonWriter& field(std::string_view name, const std::vector<std::string>& values) {
    return key(name).strings(values);
  }

  const std::string& text() const { return text_; }

 private:
  void separate();
  JsonWriter& token(std::string_view text);
  JsonWriter& open(char bracket);
  JsonWriter& close(char bracket);

  std::string text_;
  bool first_ = true;  // nothing yet at this level, or right after a key
};

}  // namespace cordon::runtimes
