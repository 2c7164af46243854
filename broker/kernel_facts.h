// What the kernel says of a process, from the files below /proc/PID: read with
// limits, parsed, and nothing added. For the boundary card (docs/card.md).
//
// A fact that could not be had says why in `missing`; its value is then empty.
// A file longer than its limit is missing as a whole: a part of a list would
// look like all of it.
#pragma once
#include <sys/types.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "jailer/report.h"

namespace cordon::broker {

// Of each file; that is also the most that parsing takes.
constexpr size_t kMostFactBytes = 256 * 1024;
constexpr size_t kMostMountFacts = 1024;
constexpr size_t kMostIdMapLines = 340;  // the kernel's own limit
constexpr size_t kMostInterfaces = 256;
constexpr size_t kMostRlimits = 64;

template <typename T>
struct Fact {
  T value{};
  std::string missing;  // "" = read

  bool had() const { return missing.empty(); }
  static Fact none(std::string why) { return {{}, std::move(why)}; }
};

// /proc/PID/status. Ids as the reader's user namespace sees them.
struct StatusFacts {
  std::array<uint32_t, 4> uids{}, gids{};  // real, effective, saved, file system
  uint64_t capInheritable = 0, capPermitted = 0, capEffective = 0, capBounding = 0, capAmbient = 0;
  bool noNewPrivs = false;
  uint32_t seccompMode = 0;                // 0 none, 1 strict, 2 filter
  std::optional<uint32_t> seccompFilters;  // kernels before 5.9 don't count them
  uint32_t pidLevels = 0;                  // 1 = in the reader's pid namespace, 2 = one below
};

struct IdMapLine {
  uint32_t inside = 0, outside = 0, count = 0;
  bool operator==(const IdMapLine& other) const {
    return inside == other.inside && outside == other.outside && count == other.count;
  }
};

// /proc/PID/mountinfo: what is reachable from the process's root. Paths and
// texts are escaped as plainText() does.
struct MountFact {
  uint32_t id = 0;
  std::string root;   // which part of the file system
  std::string where;  // as the process sees it
  std::string flags;  // of the mount: "ro,nosuid,nodev,relatime"
  std::string type, source;
  std::string options;  // of the file system: "rw,size=65536k"
};

// /proc/PID/limits, in the kernel's words.
struct RlimitFact {
  std::string name, soft, hard, unit;
};

// /proc/PID/net/dev.
struct InterfaceFact {
  std::string name;
  uint64_t receivedBytes = 0, sentBytes = 0;
};

// Each nothing when the text is not of that form, or over a limit.
std::optional<StatusFacts> parseStatus(std::string_view text);
std::optional<std::vector<IdMapLine>> parseIdMap(std::string_view text);
std::optional<std::vector<MountFact>> parseMountInfo(std::string_view text);
std::optional<std::vector<RlimitFact>> parseRlimits(std::string_view text);
std::optional<std::vector<InterfaceFact>> parseInterfaces(std::string_view text);

// Printable ASCII as it is, every other byte as the kernel writes a newline in a
// path: \012. Escapes of the kernel stay as they are.
std::string plainText(std::string_view text);
// A path as MountFact::where has it.
std::string plainPath(std::string_view path);

struct ProcessFacts {
  Fact<StatusFacts> status;
  Fact<std::vector<IdMapLine>> uidMap, gidMap;
  Fact<std::vector<MountFact>> mounts;
  Fact<std::vector<RlimitFact>> rlimits;
  Fact<std::vector<InterfaceFact>> interfaces;
  // Of net/dev in that process's /proc: one number for each network namespace.
  Fact<uint64_t> networkFile;
};

// The caller sees to it that the number is still that process's, before and
// after. Some 0.3 ms. A pid of 0 is this process.
ProcessFacts readProcess(pid_t pid);

enum class NamespaceKind : uint8_t { kUser, kMount, kPid, kNetwork, kIpc, kUts, kCgroup };
inline constexpr auto& kNamespaceNames = jailer::kNamespaces;
using NamespaceInodes = std::array<uint64_t, kNamespaceNames.size()>;  // 0 = not known
NamespaceInodes ownNamespaces();

// "cap_kill", by number; for one that libcap has no name for "cap_41".
std::vector<std::string> capabilityNames(uint64_t set);

}  // namespace cordon::broker
