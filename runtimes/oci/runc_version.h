// What `runc --version` says, and which known holes that version has.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cordon::runtimes {

struct RuncVersion {
  unsigned major = 0, minor = 0, patch = 0;
  bool preRelease = false;  // 1.4.0-rc.1: before 1.4.0
  std::string text;         // "1.1.5+ds1"
  std::string commit;       // Debian's says the package: "1.1.5+ds1-1+deb12u1"
};

// Of the output's first lines; nothing when it is not runc's.
std::optional<RuncVersion> parseRuncVersion(std::string_view output);

// One sentence for each known hole that is open in it: its number and what
// keeps it from mattering here.
std::vector<std::string> openHoles(const RuncVersion& version);

}  // namespace cordon::runtimes
