#include "runtimes/oci/json_writer.h"

namespace cordon::runtimes {

namespace {

std::string quoted(std::string_view value) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string text = "\"";
  for (char c : value) {
    auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      text += '\\';
      text += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      text += "\\u00";
      text += kHex[byte >> 4];
      text += kHex[byte & 15];
    } else {
      text += c;
    }
  }
  return text + "\"";
}

}  // namespace

void JsonWriter::separate() {
  if (!first_) text_ += ',';
  first_ = false;
}

JsonWriter& JsonWriter::token(std::string_view text) {
  separate();
  text_ += text;
  return *this;
}

JsonWriter& JsonWriter::open(char bracket) {
  separate();
  text_ += bracket;
  first_ = true;
  return *this;
}

JsonWriter& JsonWriter::close(char bracket) {
  text_ += bracket;
  first_ = false;
  return *this;
}

JsonWriter& JsonWriter::key(std::string_view name) {
  separate();
  text_ += quoted(name);
  text_ += ':';
  first_ = true;
  return *this;
}

JsonWriter& JsonWriter::string(std::string_view value) {
  return token(quoted(value));
}

JsonWriter& JsonWriter::strings(const std::vector<std::string>& values) {
  beginArray();
  for (const std::string& value : values) string(value);
  return endArray();
}

}  // namespace cordon::runtimes
