#include "escape_suite/facts.h"

#include <gtest/gtest.h>

namespace cordon::escape {
namespace {

TEST(Facts, ReadsLinesInOrder) {
  Facts facts = parseFacts("FACT begun=1\nFACT a=-5 b_2=9223372036854775807\nFACT a=7\n");
  EXPECT_EQ(facts.problem, "");
  ASSERT_EQ(facts.items.size(), 4u);
  EXPECT_EQ(facts.items[1].key, "a");
  EXPECT_EQ(facts.items[1].value, -5);
  EXPECT_EQ(facts.last("a"), 7);
  EXPECT_EQ(facts.most("a"), 7);
  EXPECT_EQ(facts.last("b_2"), INT64_MAX);
  EXPECT_FALSE(facts.has("c"));
  EXPECT_EQ(facts.most("c", 3), 3);
}

TEST(Facts, MostIsTheLargestAndAlsoANegativeOne) {
  Facts facts = parseFacts("FACT a=-9\nFACT a=-5\nFACT a=-7\n");
  EXPECT_EQ(facts.most("a"), -5);
  EXPECT_EQ(facts.last("a"), -7);
}

TEST(Facts, ALineWithoutItsEndIsCutOff) {
  Facts facts = parseFacts("FACT a=1\nFACT b=2");
  EXPECT_EQ(facts.problem, "");
  EXPECT_TRUE(facts.has("a"));
  EXPECT_FALSE(facts.has("b"));
  EXPECT_EQ(parseFacts("anything at all").problem, "");
  EXPECT_EQ(parseFacts("").items.size(), 0u);
}

TEST(Facts, RefusesWhatIsNotInTheGrammar) {
  const char* const bad[] = {
      "\n",
      "hello\n",
      "FACT\n",
      "FACT \n",
      "FACTa=1\n",
      "FACT  a=1\n",
      "FACT a=1 \n",
      "FACT a\n",
      "FACT =1\n",
      "FACT a=\n",
      "FACT a=+1\n",
      "FACT a=01\n",
      "FACT a=-0\n",
      "FACT a=-\n",
      "FACT a=1x\n",
      "FACT a=0x10\n",
      "FACT a=1.5\n",
      "FACT a==1\n",
      "FACT A=1\n",
      "FACT 1a=1\n",
      "FACT a-b=1\n",
      "FACT a=1\r\n",
      "FACT a=9223372036854775808\n",
      "FACT a=1\x1b[2J\n",
      "fact a=1\n",
      " FACT a=1\n",
      "FACT a=1\n\nFACT b=1\n",
      "FACT a=1,b=2\n",
  };
  for (const char* text : bad) {
    Facts facts = parseFacts(text);
    EXPECT_NE(facts.problem, "") << text;
    EXPECT_TRUE(facts.items.empty()) << text;
  }
  EXPECT_NE(parseFacts(std::string_view("FACT a=1\0\n", 10)).problem, "");
}

TEST(Facts, HasLimits) {
  std::string line = "FACT";
  for (size_t i = 0; i < kMaxFactsPerLine; ++i) line += " a=1";
  EXPECT_EQ(parseFacts(line + "\n").problem, "");
  EXPECT_NE(parseFacts(line + " a=1\n").problem, "");
  std::string key(kMaxFactKey, 'k');
  EXPECT_EQ(parseFacts("FACT " + key + "=1\n").problem, "");
  EXPECT_NE(parseFacts("FACT " + key + "k=1\n").problem, "");
  std::string much(kMaxFactBytes - 9, 'x');
  EXPECT_EQ(parseFacts("FACT a=1\n" + much).problem, "");
  EXPECT_NE(parseFacts("FACT a=1\n" + much + "x").problem, "");
}

}  // namespace
}  // namespace cordon::escape
