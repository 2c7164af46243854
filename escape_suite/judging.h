// What the predicates are written with. Internal to them.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "escape_suite/predicates.h"

namespace cordon::escape {

inline constexpr int64_t kMiB = 1 << 20;

std::string number(int64_t value);
std::string mebibytes(int64_t bytes);
std::string join(const std::vector<std::string>& parts, const char* between = ", ");

Judgement escaped(std::string evidence);
Judgement inconclusive(std::string evidence);
Judgement contained(std::string control, std::string evidence);

// "pids.events max 0 -> 3 (kernel)"
std::string counters(const ExecReport& exec);
std::string withCounters(std::string text, const ExecReport& exec);
// The verdict names this control, first or among the others.
bool verdictNames(const Observation& o, std::string_view control);
std::string howItEnded(const ExecReport& exec);

// Why no fact of this observation can be used; nullopt when they can.
std::optional<Judgement> unusable(const Observation& o);
// EPERM, EACCES, ENOSYS, or the caller's death.
bool isGateRefusal(int64_t error);

// The try_ and gate_ facts.
struct Tries {
  int count = 0;
  std::vector<std::string> through;    // names of those that succeeded
  std::map<std::string, int> refused;  // times, by errno's name

  std::string refusals() const;
};
Tries countTries(const Facts& facts);
// For programs whose every attempt must be refused.
Judgement allRefused(const Observation& o, const char* control);

// predicates_reach.cc: what is outside
Judgement connectOutside(const Observation& o);
Judgement writeOutside(const Observation& o);
Judgement readShadow(const Observation& o);
Judgement netlink(const Observation& o);
Judgement socketScan(const Observation& o);
Judgement inheritedFds(const Observation& o);
Judgement devices(const Observation& o);
Judgement symlinkMaze(const Observation& o);
// predicates_limits.cc: more than was given
Judgement memory(const Observation& o);
Judgement threeChildren(const Observation& o);
Judgement cpu(const Observation& o);
Judgement sleeping(const Observation& o);
Judgement forkMany(const Observation& o);
Judgement zombies(const Observation& o);
Judgement flood(const Observation& o);
Judgement bigFile(const Observation& o);
Judgement openFiles(const Observation& o);
Judgement fillTmp(const Observation& o);
Judgement fillShm(const Observation& o);
Judgement manyInodes(const Observation& o);
Judgement sysvShm(const Observation& o);
// predicates_rights.cc: rights, and the agent
Judgement killAll(const Observation& o);
Judgement daemonOutlives(const Observation& o);
Judgement coreRlimit(const Observation& o);
Judgement posture(const Observation& o);
Judgement stealDescriptors(const Observation& o);

}  // namespace cordon::escape
