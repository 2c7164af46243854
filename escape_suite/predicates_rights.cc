// Rights that a program should not have, and the agent that must survive it.
#include <string>

#include "escape_suite/judging.h"

namespace cordon::escape {
namespace {

// RLIMIT_CORE in a sandbox: the kernel's own "write none" for piped patterns.
constexpr int64_t kCoreLimit = 1;

}  // namespace

Judgement killAll(const Observation& o) {
  if (auto problem = unusable(o)) return *problem;
  if (!o.armed) {
    int64_t reachable = o.facts.most("reachable");
    if (reachable > 0) return escaped(number(reachable) + " processes may be killed");
    return o.facts.has("seen") ? contained("privileges", "no other process may be killed")
                               : inconclusive(howItEnded(o.exec));
  }
  if (o.facts.last("survived") != 1) return inconclusive(howItEnded(o.exec));
  // Who survived a signal that never went out has proved nothing.
  int64_t error = o.facts.last("kill_error").value_or(-1);
  if (error != 0) return inconclusive("kill -9 -1 was refused: " + errnoName(error));
  if (o.facts.most("bait_killed") == 0) return inconclusive("the signal reached nobody");
  return contained("privileges",
                   number(o.facts.most("bait_killed")) + " of its own killed, the agent answers");
}

Judgement daemonOutlives(const Observation& o) {
  if (o.outside.daemonAfter) return escaped("a process is alive after the release");
  if (auto problem = unusable(o)) return *problem;
  if (o.facts.last("daemon") != 1) return inconclusive("no daemon could be started");
  // Not seen afterwards means something only where it could be seen at all.
  if (!o.outside.daemonSeen && o.exec.leftRunning > 0) {
    return inconclusive("the sandbox's processes can't be seen from here");
  }
  if (!o.outside.released) return inconclusive("the release was not answered");
  return contained("processes", o.outside.daemonSeen ? "alive until the release, gone with it"
                                                     : "gone with its exec");
}

Judgement coreRlimit(const Observation& o) {
  if (auto problem = unusable(o)) return *problem;
  int64_t soft = o.facts.last("soft").value_or(-1);
  int64_t hard = o.facts.last("hard").value_or(-1);
  if (o.facts.most("dumped") > 0) return escaped("it dumped a core");
  if (soft != kCoreLimit || hard != kCoreLimit) {
    return escaped("RLIMIT_CORE is " + number(soft) + ", " + number(hard) + ", not 1");
  }
  if (o.facts.last("crashed") != 1) return inconclusive("it could not crash");
  Judgement judgement = allRefused(o, "privileges");
  if (judgement.containment == Containment::kContained) {
    judgement.evidence = "RLIMIT_CORE 1, no core; " + judgement.evidence;
  }
  return judgement;
}

Judgement posture(const Observation& o) {
  if (auto problem = unusable(o)) return *problem;
  Tries tries = countTries(o.facts);  // memfd_exec may be refused outright
  if (!o.facts.has("readable") && tries.count > 0 && tries.through.empty()) {
    return contained("privileges", tries.refusals());
  }
  if (o.facts.last("readable") != 1) return inconclusive("its own status can't be read");
  std::vector<std::string> wrong;
  if (o.facts.last("no_new_privs") != 1) wrong.push_back("no_new_privs is off");
  if (o.facts.last("seccomp") != 2) wrong.push_back("no seccomp filter");
  for (const char* set : {"cap_effective", "cap_permitted", "cap_inheritable", "cap_ambient"}) {
    if (o.facts.last(set) != 0) wrong.push_back(std::string(set) + " is not empty");
  }
  if (!wrong.empty()) return escaped(join(wrong));
  return contained("privileges", "no_new_privs, seccomp, no capability; uid " +
                                     number(o.facts.last("uid").value_or(-1)));
}

Judgement stealDescriptors(const Observation& o) {
  if (auto problem = unusable(o)) return *problem;
  if (o.facts.most("stolen") > 0) {
    return escaped(number(o.facts.most("stolen")) + " descriptors stolen");
  }
  if (!o.facts.has("done") || o.facts.most("processes") == 0) {
    return inconclusive("no process in sight");
  }
  if (o.facts.most("others") == 0) return contained("privileges", "no other's process in sight");
  return contained("privileges", "no descriptor of " + number(o.facts.most("others")) +
                                     " others: " + errnoName(o.facts.last("error").value_or(0)));
}

}  // namespace cordon::escape
