#include "frontend/verdict/escape.h"

#include <gtest/gtest.h>

namespace cordon::verdict {
namespace {

TEST(EscapeControls, LeavesPlainTextAlone) {
  EXPECT_EQ(escapeControls("plain, grüße, 日本, 🙂"), "plain, grüße, 日本, 🙂");
}

TEST(EscapeControls, EscapesEveryControlByte) {
  for (int byte = 0; byte < 256; ++byte) {
    std::string safe = escapeControls(std::string(1, char(byte)));
    for (char c : safe) EXPECT_TRUE(c >= 0x20 && c < 0x7f) << byte;
  }
  EXPECT_EQ(escapeControls(std::string_view("a\0b\n\t\r\x7f", 7)), "a\\x00b\\n\\t\\r\\x7f");
}

TEST(EscapeControls, EscapesTerminalSequencesInBothForms) {
  EXPECT_EQ(escapeControls("\x1b]0;title\x07"), "\\x1b]0;title\\x07");
  EXPECT_EQ(escapeControls("\xc2\x9b"
                           "2J"),
            "\\u{009b}2J");
  EXPECT_EQ(escapeControls("\x9b"
                           "2J"),
            "\\x9b2J");
}

TEST(EscapeControls, EscapesWhatReordersOrHides) {
  EXPECT_EQ(escapeControls("a\u202eb\u200bc\u2028d\ufeff"),
            "a\\u{202e}b\\u{200b}c\\u{2028}d\\u{feff}");
}

TEST(Utf8, RefusesWhatIsNotShortestOrNotACharacter) {
  EXPECT_TRUE(isUtf8("\xf4\x8f\xbf\xbf"));
  EXPECT_FALSE(isUtf8("\xf4\x90\x80\x80"));
  EXPECT_FALSE(isUtf8("\xc0\x80"));
  EXPECT_FALSE(isUtf8("\xc1\xbf"));
  EXPECT_FALSE(isUtf8("\xe0\x9f\xbf"));
  EXPECT_FALSE(isUtf8("\xf0\x8f\xbf\xbf"));
  EXPECT_FALSE(isUtf8("\xed\xa0\x80"));
  EXPECT_FALSE(isUtf8("\xe2\x82"));
  EXPECT_FALSE(isUtf8("\x80"));
  EXPECT_FALSE(isUtf8("\xff"));
  EXPECT_TRUE(isUtf8(""));
}

}  // namespace
}  // namespace cordon::verdict
