#include "broker/kernel_facts.h"

#include <errno.h>
#include <fcntl.h>
#include <kj/io.h>
#include <string.h>
#include <sys/capability.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <limits>
#include <utility>

namespace cordon::broker {

namespace {

using Text = std::string_view;

// Takes from the front of `rest` up to `end`, which goes too.
Text take(Text& rest, char end) {
  size_t at = rest.find(end);
  Text found = rest.substr(0, at);
  rest.remove_prefix(at == Text::npos ? rest.size() : at + 1);
  return found;
}

Text takeLine(Text& rest) {
  return take(rest, '\n');
}

// The next word; "" at the end.
Text takeWord(Text& rest) {
  size_t begin = rest.find_first_not_of(" \t");
  if (begin == Text::npos) {
    rest = {};
    return {};
  }
  rest.remove_prefix(begin);
  Text word = rest.substr(0, rest.find_first_of(" \t"));
  rest.remove_prefix(word.size());
  return word;
}

template <typename T>
bool toNumber(Text text, T& value, int base = 10) {
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

template <typename T>
bool takeNumber(Text& rest, T& value, int base = 10) {
  return toNumber(takeWord(rest), value, base);
}

bool allBlank(Text text) {
  return text.find_first_not_of(" \t") == Text::npos;
}

bool takeIds(Text rest, std::array<uint32_t, 4>& ids) {
  for (auto& id : ids) {
    if (!takeNumber(rest, id)) return false;
  }
  return allBlank(rest);
}

uint32_t countWords(Text rest) {
  uint32_t count = 0;
  while (!takeWord(rest).empty()) ++count;
  return count;
}

// ----------------------------------------------------------------- reading

Fact<std::string> readFile(int directory, const char* name) {
  int raw = openat(directory, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (raw < 0) return Fact<std::string>::none(std::string(name) + ": " + strerror(errno));
  kj::AutoCloseFd file(raw);
  Fact<std::string> text;
  char buffer[16384];
  for (;;) {
    ssize_t got = read(file, buffer, sizeof(buffer));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Fact<std::string>::none(std::string(name) + ": " + strerror(errno));
    if (got == 0) return text;
    text.value.append(buffer, static_cast<size_t>(got));
    if (text.value.size() > kMostFactBytes) {
      return Fact<std::string>::none(std::string(name) + " is longer than " +
                                     std::to_string(kMostFactBytes) + " bytes");
    }
  }
}

template <typename T>
Fact<T> readAndParse(int directory, const char* name, std::optional<T> (*parse)(Text)) {
  auto text = readFile(directory, name);
  if (!text.had()) return Fact<T>::none(std::move(text.missing));
  auto parsed = parse(text.value);
  if (!parsed) return Fact<T>::none(std::string(name) + " is not of a form that is known");
  return {std::move(*parsed), ""};
}

kj::AutoCloseFd openProcess(pid_t pid) {
  std::string path = "/proc/" + (pid == 0 ? std::string("self") : std::to_string(pid));
  return kj::AutoCloseFd(open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
}

}  // namespace

std::optional<StatusFacts> parseStatus(Text text) {
  StatusFacts facts;
  // One bit for each line that must be there once.
  uint32_t seen = 0;
  auto once = [&seen](unsigned bit, bool good) {
    bool again = (seen & 1u << bit) != 0;
    seen |= 1u << bit;
    return good && !again;
  };
  if (text.size() > kMostFactBytes) return std::nullopt;
  while (!text.empty()) {
    Text rest = takeLine(text);
    Text key = take(rest, ':');
    bool good = true;
    auto capability = [&](unsigned bit, uint64_t& set) {
      good = once(bit, takeNumber(rest, set, 16) && allBlank(rest));
    };
    if (key == "Uid") good = once(0, takeIds(rest, facts.uids));
    if (key == "Gid") good = once(1, takeIds(rest, facts.gids));
    if (key == "CapInh") capability(2, facts.capInheritable);
    if (key == "CapPrm") capability(3, facts.capPermitted);
    if (key == "CapEff") capability(4, facts.capEffective);
    if (key == "CapBnd") capability(5, facts.capBounding);
    if (key == "CapAmb") capability(6, facts.capAmbient);
    if (key == "NoNewPrivs") {
      uint32_t on = 0;
      good = once(7, takeNumber(rest, on) && on <= 1 && allBlank(rest));
      facts.noNewPrivs = on == 1;
    }
    if (key == "Seccomp") {
      good = once(8, takeNumber(rest, facts.seccompMode) && allBlank(rest));
    }
    if (key == "NSpid") {
      facts.pidLevels = countWords(rest);
      good = once(9, facts.pidLevels > 0);
    }
    if (key == "Seccomp_filters") {
      uint32_t filters = 0;
      good = once(10, takeNumber(rest, filters) && allBlank(rest));
      facts.seccompFilters = filters;
    }
    if (!good) return std::nullopt;
  }
  constexpr uint32_t kAllButFilters = (1u << 10) - 1;
  if ((seen & kAllButFilters) != kAllButFilters) return std::nullopt;
  return facts;
}

std::optional<std::vector<IdMapLine>> parseIdMap(Text text) {
  std::vector<IdMapLine> lines;
  if (text.size() > kMostFactBytes) return std::nullopt;
  while (!text.empty()) {
    Text rest = takeLine(text);
    IdMapLine line;
    if (!takeNumber(rest, line.inside) || !takeNumber(rest, line.outside) ||
        !takeNumber(rest, line.count) || !allBlank(rest) || lines.size() == kMostIdMapLines) {
      return std::nullopt;
    }
    lines.push_back(line);
  }
  return lines;
}

// ID PARENT MAJOR:MINOR ROOT WHERE FLAGS [OPTIONAL...] - TYPE SOURCE OPTIONS
std::optional<std::vector<MountFact>> parseMountInfo(Text text) {
  std::vector<MountFact> mounts;
  if (text.size() > kMostFactBytes) return std::nullopt;
  while (!text.empty()) {
    Text rest = takeLine(text);
    MountFact mount;
    uint32_t parent;
    if (mounts.size() == kMostMountFacts || !takeNumber(rest, mount.id) ||
        !takeNumber(rest, parent)) {
      return std::nullopt;
    }
    takeWord(rest);  // the device
    mount.root = plainText(takeWord(rest));
    mount.where = plainText(takeWord(rest));
    mount.flags = plainText(takeWord(rest));
    Text word;
    do {
      word = takeWord(rest);
      if (word.empty()) return std::nullopt;
    } while (word != "-");
    mount.type = plainText(takeWord(rest));
    // By single spaces from here on: a source may be empty.
    if (rest.substr(0, 1) == " ") rest.remove_prefix(1);
    mount.source = plainText(take(rest, ' '));
    mount.options = plainText(rest);
    if (mount.type.empty() || mount.options.empty()) return std::nullopt;
    mounts.push_back(std::move(mount));
  }
  return mounts;
}

// Columns of fixed width: a name has spaces, a unit may be absent.
std::optional<std::vector<RlimitFact>> parseRlimits(Text text) {
  constexpr size_t kNameWidth = 25;
  std::vector<RlimitFact> limits;
  if (text.size() > kMostFactBytes) return std::nullopt;
  takeLine(text);
  while (!text.empty()) {
    Text line = takeLine(text);
    if (line.size() <= kNameWidth || limits.size() == kMostRlimits) return std::nullopt;
    Text name = line.substr(0, kNameWidth);
    Text rest = line.substr(kNameWidth);
    size_t end = name.find_last_not_of(' ');
    if (end == Text::npos) return std::nullopt;
    RlimitFact limit;
    limit.name = plainText(name.substr(0, end + 1));
    limit.soft = plainText(takeWord(rest));
    limit.hard = plainText(takeWord(rest));
    limit.unit = plainText(takeWord(rest));
    if (limit.hard.empty() || !allBlank(rest)) return std::nullopt;
    limits.push_back(std::move(limit));
  }
  return limits;
}

std::optional<std::vector<InterfaceFact>> parseInterfaces(Text text) {
  constexpr int kSentAfter = 7;  // columns between the two
  std::vector<InterfaceFact> interfaces;
  if (text.size() > kMostFactBytes) return std::nullopt;
  takeLine(text);
  takeLine(text);
  while (!text.empty()) {
    Text rest = takeLine(text);
    if (interfaces.size() == kMostInterfaces || rest.find(':') == Text::npos) return std::nullopt;
    Text before = take(rest, ':');
    InterfaceFact interface;
    interface.name = plainText(takeWord(before));
    if (interface.name.empty() || !allBlank(before)) return std::nullopt;
    bool good = takeNumber(rest, interface.receivedBytes);
    uint64_t skipped;
    for (int i = 0; i < kSentAfter; ++i) good = good && takeNumber(rest, skipped);
    if (!good || !takeNumber(rest, interface.sentBytes)) return std::nullopt;
    interfaces.push_back(std::move(interface));
  }
  return interfaces;
}

namespace {

// Printable ASCII but for those in `others`.
std::string escaped(Text text, Text others) {
  std::string result;
  result.reserve(text.size());
  for (char c : text) {
    auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f && others.find(c) == Text::npos) {
      result += c;
      continue;
    }
    const char octal[] = {'\\', static_cast<char>('0' + (byte >> 6)),
                          static_cast<char>('0' + (byte >> 3 & 7)),
                          static_cast<char>('0' + (byte & 7))};
    result.append(octal, sizeof(octal));
  }
  return result;
}

}  // namespace

std::string plainText(Text text) {
  return escaped(text, "");
}

std::string plainPath(Text path) {
  return escaped(path, " \\");
}

ProcessFacts readProcess(pid_t pid) {
  ProcessFacts facts;
  auto process = openProcess(pid);
  facts.status = readAndParse(process, "status", parseStatus);
  facts.uidMap = readAndParse(process, "uid_map", parseIdMap);
  facts.gidMap = readAndParse(process, "gid_map", parseIdMap);
  facts.mounts = readAndParse(process, "mountinfo", parseMountInfo);
  facts.rlimits = readAndParse(process, "limits", parseRlimits);
  facts.interfaces = readAndParse(process, "net/dev", parseInterfaces);
  struct stat status;
  if (fstatat(process, "net/dev", &status, AT_SYMLINK_NOFOLLOW) < 0) {
    facts.networkFile = Fact<uint64_t>::none(std::string("net/dev: ") + strerror(errno));
  } else {
    facts.networkFile.value = status.st_ino;
  }
  return facts;
}

NamespaceInodes ownNamespaces() {
  NamespaceInodes inodes{};
  for (size_t i = 0; i < inodes.size(); ++i) {
    struct stat status;
    std::string path = std::string("/proc/self/ns/") + kNamespaceNames[i];
    if (stat(path.c_str(), &status) == 0) inodes[i] = status.st_ino;
  }
  return inodes;
}

std::vector<std::string> capabilityNames(uint64_t set) {
  std::vector<std::string> names;
  for (int capability = 0; capability < std::numeric_limits<uint64_t>::digits; ++capability) {
    if ((set >> capability & 1) == 0) continue;
    char* name = cap_to_name(capability);
    names.emplace_back(name == nullptr ? "cap_" + std::to_string(capability) : name);
    cap_free(name);
  }
  return names;
}

}  // namespace cordon::broker
