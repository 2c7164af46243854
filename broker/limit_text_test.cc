#include "broker/limit_text.h"

#include <gtest/gtest.h>

#include <string>

namespace cordon::broker {
namespace {

TEST(LimitText, Bytes) {
  EXPECT_EQ(parseBytes("0").value, 0u);
  EXPECT_TRUE(parseBytes("0"));
  EXPECT_EQ(parseBytes("4096").value, 4096u);
  EXPECT_EQ(parseBytes("128M").value, 128u << 20);
  EXPECT_EQ(parseBytes("128m").value, 128u << 20);
  EXPECT_EQ(parseBytes("1K").value, 1024u);
  EXPECT_EQ(parseBytes("3G").value, uint64_t{3} << 30);
  EXPECT_EQ(parseBytes("2T").value, uint64_t{2} << 40);
  EXPECT_EQ(parseBytes("18446744073709551615").value, UINT64_MAX);
  EXPECT_EQ(parseBytes("16777215T").value, uint64_t{16777215} << 40);
  for (const char* bad :
       {"", "-1", "+1", " 1", "1 ", "12X", "12MB", "12Mi", "M", "1.5G", "0x10", "1e3", "1.", "1,5",
        "18446744073709551616", "99999999999999999999999", "16777216T", "1\n", "١"}) {
    EXPECT_FALSE(parseBytes(bad)) << bad;
    EXPECT_EQ(parseBytes(bad).value, 0u) << bad;
  }
  EXPECT_FALSE(parseBytes(std::string_view("1\0", 2)));
}

TEST(LimitText, Duration) {
  EXPECT_EQ(parseDuration("2s").value, 2000u);
  EXPECT_EQ(parseDuration("500ms").value, 500u);
  EXPECT_EQ(parseDuration("1m").value, 60000u);
  EXPECT_EQ(parseDuration("24h").value, 86400000u);
  EXPECT_EQ(parseDuration("1.5s").value, 1500u);
  EXPECT_EQ(parseDuration("0.001s").value, 1u);
  EXPECT_EQ(parseDuration("0.25h").value, 900000u);
  EXPECT_EQ(parseDuration("18446744073709551615ms").value, UINT64_MAX);
  for (const char* bad : {"", "2", "-2s", "s", ".5s", "1.5ms", "0.0001s", "1d", "1 s", "1sec", "1S",
                          "2s3ms", "18446744073709551615s", "1.s", "18446744073709551.616s"}) {
    EXPECT_FALSE(parseDuration(bad)) << bad;
  }
}

TEST(LimitText, Cpus) {
  EXPECT_EQ(parseCpus("0.5").value, 500u);
  EXPECT_EQ(parseCpus("2").value, 2000u);
  EXPECT_EQ(parseCpus("1.25").value, 1250u);
  EXPECT_EQ(parseCpus("0.001").value, 1u);
  for (const char* bad : {"", "-1", ".5", "1.", "0.0005", "1c", "4294968", "1e9", "nan", "inf"}) {
    EXPECT_FALSE(parseCpus(bad)) << bad;
  }
}

TEST(LimitText, Count) {
  EXPECT_EQ(parseCount("64").value, 64u);
  EXPECT_EQ(parseCount("4294967295").value, UINT32_MAX);
  for (const char* bad : {"", "-1", "4294967296", "1.5", "1.0", "64k", "0b1"}) {
    EXPECT_FALSE(parseCount(bad)) << bad;
  }
}

TEST(LimitText, ErrorsSayWhat) {
  EXPECT_EQ(parseBytes("-1").error, "it must not be negative");
  EXPECT_EQ(parseBytes("").error, "it is empty");
  EXPECT_EQ(parseBytes("12X").error, "the unit must be K, M, G, T or none");
  EXPECT_EQ(parseDuration("2").error, "the unit must be ms, s, m or h");
}

}  // namespace
}  // namespace cordon::broker
