#include "broker/cgroups_discovery.h"

#include <kj/debug.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string_view>

namespace cordon::broker {

namespace {

constexpr std::array<std::string_view, 14> kV1Controllers = {
    "memory", "pids",    "cpu",      "cpuacct",    "cpuset",  "devices", "freezer",
    "blkio",  "net_cls", "net_prio", "perf_event", "hugetlb", "rdma",    "misc"};

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

// ID PARENT MAJ:MIN ROOT MOUNTPOINT OPTIONS [optional...] - TYPE SOURCE SUPEROPTIONS
bool parseMount(const std::string& line, Hierarchy& h) {
  auto fields = split(line, ' ');
  auto dash = std::find(fields.begin(), fields.end(), "-");
  if (fields.size() < 10 || fields.end() - dash < 4) return false;
  const std::string& type = dash[1];
  if (type != "cgroup" && type != "cgroup2") return false;
  h.v2 = type == "cgroup2";
  h.device = fields[2];
  h.mountRoot = unescapeMountinfo(fields[3]);
  h.mountPoint = unescapeMountinfo(fields[4]);
  auto mountOptions = split(fields[5], ',');
  auto superOptions = split(dash[3], ',');
  auto readOnly = [](const std::vector<std::string>& options) {
    return std::find(options.begin(), options.end(), "ro") != options.end();
  };
  h.writable = !readOnly(mountOptions) && !readOnly(superOptions);
  if (!h.v2) {
    for (auto& option : superOptions) {
      bool named = option.compare(0, 5, "name=") == 0;
      bool known =
          std::find(kV1Controllers.begin(), kV1Controllers.end(), option) != kV1Controllers.end();
      if (named || known) h.controllers.push_back(option);
    }
  }
  return true;
}

bool better(const Hierarchy& a, const Hierarchy& b) {
  if (a.writable != b.writable) return a.writable;
  return a.mountRoot == "/" && b.mountRoot != "/";
}

std::string readProcFile(const char* path) {
  std::ifstream file(path);
  KJ_REQUIRE(file.good(), "cannot read", path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

bool Hierarchy::has(const std::string& controller) const {
  return std::find(controllers.begin(), controllers.end(), controller) != controllers.end();
}

std::string Hierarchy::label() const {
  if (v2) return "unified";
  std::string text;
  for (auto& c : controllers) text += (text.empty() ? "" : ",") + c;
  return text;
}

std::string unescapeMountinfo(const std::string& text) {
  std::string plain;
  auto octal = [](char c) { return c >= '0' && c <= '7'; };
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size() && octal(text[i + 1]) && octal(text[i + 2]) &&
        octal(text[i + 3])) {
      plain += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 +
                                 (text[i + 3] - '0'));
      i += 3;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

std::vector<Hierarchy> parseHierarchies(const std::string& mountinfo,
                                        const std::string& selfCgroup) {
  std::vector<Hierarchy> all;
  for (auto& line : split(mountinfo, '\n')) {
    Hierarchy h;
    if (!parseMount(line, h)) continue;
    auto same = std::find_if(all.begin(), all.end(),
                             [&](const Hierarchy& o) { return o.device == h.device; });
    if (same == all.end()) {
      all.push_back(std::move(h));
    } else if (better(h, *same)) {
      *same = std::move(h);
    }
  }
  // ID:CONTROLLERS:PATH, where the path may hold colons; "0::PATH" is v2.
  for (auto& line : split(selfCgroup, '\n')) {
    size_t first = line.find(':');
    size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    auto controllers = split(line.substr(first + 1, second - first - 1), ',');
    std::string path = line.substr(second + 1);
    for (auto& h : all) {
      bool match = h.v2 ? line.compare(0, 3, "0::") == 0
                        : !controllers.empty() && !h.controllers.empty() && h.has(controllers[0]);
      if (match) h.ownPath = path;
    }
  }
  return all;
}

std::vector<Hierarchy> readHierarchies() {
  return parseHierarchies(readProcFile("/proc/self/mountinfo"), readProcFile("/proc/self/cgroup"));
}

}  // namespace cordon::broker
