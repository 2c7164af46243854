#include "runtimes/oci/runc_version.h"

#include <algorithm>
#include <charconv>
#include <tuple>

namespace cordon::runtimes {

namespace {

constexpr size_t kMaxText = 64;

// Printable ASCII without spaces, bounded: it ends up in logs and answers.
std::string cleaned(std::string_view text) {
  std::string clean;
  for (char c : text.substr(0, kMaxText)) {
    if (c > ' ' && c <= '~') clean += c;
  }
  return clean;
}

// The rest of the first line that starts with `prefix`.
std::string_view lineAfter(std::string_view output, std::string_view prefix) {
  while (!output.empty()) {
    size_t end = std::min(output.find('\n'), output.size());
    std::string_view line = output.substr(0, end);
    if (line.substr(0, prefix.size()) == prefix) return line.substr(prefix.size());
    output.remove_prefix(std::min(end + 1, output.size()));
  }
  return {};
}

bool takeNumber(std::string_view& text, unsigned& number) {
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return false;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return true;
}

bool takeDot(std::string_view& text) {
  if (text.empty() || text[0] != '.') return false;
  text.remove_prefix(1);
  return true;
}

struct Release {
  unsigned major, minor, patch;
};

struct Hole {
  const char* cve;
  // First fixed release of each branch that has one, ascending. Branches before
  // the first are open, those after the last are fixed.
  std::vector<Release> fixed;
  const char* debianFix;  // fixed from this Debian revision of 1.1.5 on, or null
  const char* defence;
};

const std::vector<Hole>& holes() {
  static const std::vector<Hole> all = {
      {"CVE-2024-21626",
       {{1, 1, 12}},
       "deb12u1",
       "leaked descriptors and working directory: cwd is /, every descriptor is close-on-exec and "
       "nothing enters a sandbox after create"},
      {"CVE-2024-45310",
       {{1, 1, 14}, {1, 2, 0}},
       nullptr,
       "empty files on the host through a shared volume: no writable mount is shared"},
      {"CVE-2025-31133",
       {{1, 2, 8}, {1, 3, 3}, {1, 4, 0}},
       nullptr,
       "masked paths through a replaced /dev/null: /dev is a tmpfs of the sandbox's own and no "
       "program of its runs yet"},
      {"CVE-2025-52565",
       {{1, 2, 8}, {1, 3, 3}, {1, 4, 0}},
       nullptr,
       "the /dev/console bind: no sandbox has a terminal"},
      {"CVE-2025-52881",
       {{1, 2, 8}, {1, 3, 3}, {1, 4, 0}},
       nullptr,
       "writes to /proc redirected by racing mounts: no mount is shared between sandboxes"},
      {"CVE-2026-41579",
       {{1, 3, 6}, {1, 4, 3}, {1, 5, 0}},
       nullptr,
       "an image whose /dev is a symlink: /dev is a directory of ours in every image, and an "
       "image with such a link is refused"},
  };
  return all;
}

bool isFixed(const Hole& hole, const RuncVersion& version) {
  for (const Release& fix : hole.fixed) {
    if (std::tie(version.major, version.minor) < std::tie(fix.major, fix.minor)) return false;
    if (version.major == fix.major && version.minor == fix.minor) {
      return version.patch > fix.patch || (version.patch == fix.patch && !version.preRelease);
    }
  }
  return true;
}

bool isFixedByDebian(const Hole& hole, const RuncVersion& version) {
  return hole.debianFix != nullptr && version.commit.find(hole.debianFix) != std::string::npos;
}

}  // namespace

std::optional<RuncVersion> parseRuncVersion(std::string_view output) {
  std::string_view line = lineAfter(output, "runc version ");
  if (line.empty()) return std::nullopt;
  RuncVersion version;
  version.text = cleaned(line);
  version.commit = cleaned(lineAfter(output, "commit: "));
  if (!takeNumber(line, version.major) || !takeDot(line) || !takeNumber(line, version.minor) ||
      !takeDot(line) || !takeNumber(line, version.patch)) {
    return std::nullopt;
  }
  version.preRelease = !line.empty() && (line[0] == '-' || line[0] == '~');
  return version;
}

std::vector<std::string> openHoles(const RuncVersion& version) {
  std::vector<std::string> notes;
  for (const Hole& hole : holes()) {
    if (isFixed(hole, version) || isFixedByDebian(hole, version)) continue;
    notes.push_back(std::string(hole.cve) + " is not fixed in " + version.text + " (" +
                    hole.defence + ")");
  }
  return notes;
}

}  // namespace cordon::runtimes
