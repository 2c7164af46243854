// Text of unknown origin made safe for a terminal.
#pragma once
#include <string>
#include <string_view>

namespace cordon::verdict {

// The same text on one line: control characters (C0, DEL, C1) and bytes that
// are not UTF-8 become \n, \t, \xNN or \u{NNNN}, as do the marks that reorder
// or hide text (bidirectional controls, zero width, line separators). What is
// left is valid UTF-8.
std::string escapeControls(std::string_view text);

// The length in bytes of the valid UTF-8 sequence at the start of `text`, or 0.
// Overlong forms, surrogates and code points past U+10FFFF are not valid.
size_t utf8Length(std::string_view text);

bool isUtf8(std::string_view text);

}  // namespace cordon::verdict
