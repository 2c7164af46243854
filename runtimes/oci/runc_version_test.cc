#include "runtimes/oci/runc_version.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace cordon::runtimes {
namespace {

std::vector<std::string> holesOf(const std::string& version, const std::string& commit = "") {
  auto parsed = parseRuncVersion("runc version " + version + "\ncommit: " + commit + "\n");
  EXPECT_TRUE(parsed) << version;
  std::vector<std::string> numbers;
  for (const std::string& note : openHoles(*parsed)) {
    EXPECT_NE(note.find("is not fixed in " + version), std::string::npos) << note;
    numbers.push_back(note.substr(0, note.find(' ')));
  }
  return numbers;
}

using Numbers = std::vector<std::string>;

TEST(RuncVersion, ReadsDebians) {
  auto version =
      parseRuncVersion("runc version 1.1.5+ds1\ncommit: 1.1.5+ds1-1+deb12u1\nspec: 1.0.2-dev\n");
  ASSERT_TRUE(version);
  EXPECT_EQ(version->major, 1u);
  EXPECT_EQ(version->minor, 1u);
  EXPECT_EQ(version->patch, 5u);
  EXPECT_FALSE(version->preRelease);
  EXPECT_EQ(version->text, "1.1.5+ds1");
  EXPECT_EQ(version->commit, "1.1.5+ds1-1+deb12u1");
}

TEST(RuncVersion, RefusesWhatIsNone) {
  for (const char* text : {"", "\n\n", "crun version 1.8.1", "runc version ", "runc version x.y",
                           "runc version 1.2", "runc version 99999999999.1.1"}) {
    EXPECT_FALSE(parseRuncVersion(text)) << text;
  }
}

TEST(RuncVersion, KeepsNothingUnprintable) {
  auto version = parseRuncVersion("runc version 1.2.3\x1b[31m\x7f\n");
  ASSERT_TRUE(version);
  EXPECT_EQ(version->text, "1.2.3[31m");
  auto longOne = parseRuncVersion("runc version 1.2.3" + std::string(10'000, 'a'));
  ASSERT_TRUE(longOne);
  EXPECT_LE(longOne->text.size(), 64u);
}

TEST(OpenHoles, ByVersion) {
  Numbers of2025 = {"CVE-2025-31133", "CVE-2025-52565", "CVE-2025-52881"};
  Numbers withDev = of2025;
  withDev.push_back("CVE-2026-41579");
  Numbers debian = withDev;
  debian.insert(debian.begin(), "CVE-2024-45310");
  Numbers all = debian;
  all.insert(all.begin(), "CVE-2024-21626");

  EXPECT_EQ(holesOf("1.1.5"), all);
  EXPECT_EQ(holesOf("1.1.5+ds1", "1.1.5+ds1-1+deb12u1"), debian);
  EXPECT_EQ(holesOf("1.1.5+ds1", "1.1.5+ds1-1"), all);
  EXPECT_EQ(holesOf("1.0.0"), all);
  EXPECT_EQ(holesOf("1.1.12"), debian);
  EXPECT_EQ(holesOf("1.1.15"), withDev);
  EXPECT_EQ(holesOf("1.2.8"), Numbers{"CVE-2026-41579"});
  EXPECT_EQ(holesOf("1.3.2"), withDev);
  EXPECT_EQ(holesOf("1.3.5"), Numbers{"CVE-2026-41579"});
  EXPECT_EQ(holesOf("1.3.6"), Numbers{});
  EXPECT_EQ(holesOf("1.4.0-rc.1"), withDev);
  EXPECT_EQ(holesOf("1.4.2"), Numbers{"CVE-2026-41579"});
  EXPECT_EQ(holesOf("1.4.3"), Numbers{});
  EXPECT_EQ(holesOf("2.0.0"), Numbers{});
}

}  // namespace
}  // namespace cordon::runtimes
