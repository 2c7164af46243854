#include "escape_suite/table.h"

#include <gtest/gtest.h>

namespace cordon::escape {
namespace {

Table sample() {
  Table table;
  table.runtime = "runc";
  table.rows.push_back({"connect", {Containment::kContained, "network", "2 tries refused"}});
  table.rows.push_back({"three_children", {Containment::kEscaped, "none", "192 MiB \x1b[2J\n"}});
  table.rows.push_back({"cpu", {Containment::kInconclusive, "none", "say \"no\" \\"}});
  return table;
}

TEST(Table, ExitStatusNeedsEveryRowContained) {
  Table table = sample();
  EXPECT_EQ(table.exitStatus(), 1);
  table.rows.resize(1);
  EXPECT_EQ(table.exitStatus(), 0);
  table.rows[0].judgement.containment = Containment::kInconclusive;
  EXPECT_EQ(table.exitStatus(), 1);
  table.rows.clear();
  EXPECT_EQ(table.exitStatus(), 1);
}

TEST(Table, TextIsAlignedAndEscaped) {
  EXPECT_EQ(asText(sample()),
            "program         outcome       control  evidence\n"
            "connect         contained     network  2 tries refused\n"
            "three_children  escaped       none     192 MiB \\x1b[2J\\x0a\n"
            "cpu             inconclusive  none     say \"no\" \\\n"
            "runc: 1 contained, 1 escaped, 1 inconclusive\n");
}

TEST(Table, JsonHasTheDocumentedShape) {
  EXPECT_EQ(asJson(sample()),
            "{\"runtime\":\"runc\",\"contained\":1,\"escaped\":1,\"inconclusive\":1,\"rows\":["
            "{\"program\":\"connect\",\"outcome\":\"contained\",\"control\":\"network\","
            "\"evidence\":\"2 tries refused\"},"
            "{\"program\":\"three_children\",\"outcome\":\"escaped\",\"control\":\"none\","
            "\"evidence\":\"192 MiB \\\\x1b[2J\\\\x0a\"},"
            "{\"program\":\"cpu\",\"outcome\":\"inconclusive\",\"control\":\"none\","
            "\"evidence\":\"say \\\"no\\\" \\\\\"}]}\n");
}

TEST(Table, PrintableKeepsOnlyAscii) {
  EXPECT_EQ(printable("a\tb\x7f\xc3\xa9"), "a\\x09b\\x7f\\xc3\\xa9");
  EXPECT_EQ(printable(std::string_view("\0", 1)), "\\x00");
}

}  // namespace
}  // namespace cordon::escape
