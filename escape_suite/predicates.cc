#include "escape_suite/predicates.h"

#include <string.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <optional>

#include "escape_suite/programs/died_by_signal.h"

namespace cordon::escape {
namespace {

constexpr int64_t kMiB = 1 << 20;
// How far past its limit a stop may come: the broker polls CPU time, and a kill
// travels through two processes on a busy machine.
constexpr int64_t kCpuSlackMs = 1000;
constexpr int64_t kWallSlackMs = 2000;
// RLIMIT_CORE in a sandbox: the kernel's own "write none" for piped patterns.
constexpr int64_t kCoreLimit = 1;

std::string number(int64_t value) {
  return std::to_string(value);
}
std::string mebibytes(int64_t bytes) {
  return number(bytes / kMiB) + " MiB";
}

Judgement escaped(std::string evidence) {
  return {Containment::kEscaped, "none", std::move(evidence)};
}
Judgement inconclusive(std::string evidence) {
  return {Containment::kInconclusive, "none", std::move(evidence)};
}
Judgement contained(std::string control, std::string evidence) {
  return {Containment::kContained, std::move(control), std::move(evidence)};
}

std::string join(const std::vector<std::string>& parts, const char* between = ", ") {
  std::string all;
  for (const std::string& part : parts) {
    if (!all.empty()) all += between;
    all += part;
  }
  return all;
}

// "pids.events max 0 -> 3 (kernel)"
std::string counters(const ExecReport& exec) {
  std::vector<std::string> parts;
  for (const Counter& counter : exec.evidence) {
    parts.push_back(counter.name + " " + std::to_string(counter.before) + " -> " +
                    std::to_string(counter.after) + " (" + counter.source + ")");
  }
  return join(parts);
}

std::string withCounters(std::string text, const ExecReport& exec) {
  std::string counted = counters(exec);
  return counted.empty() ? text : text + "; " + counted;
}

// The verdict names this control, first or among the others.
bool verdictNames(const Observation& o, std::string_view control) {
  return o.exec.control == control ||
         std::find(o.exec.others.begin(), o.exec.others.end(), control) != o.exec.others.end();
}

std::string howItEnded(const ExecReport& exec) {
  if (!exec.finished) return exec.failure.empty() ? "no result" : exec.failure;
  if (!exec.started) return "not started: " + errnoName(exec.startErrno);
  std::string text = exec.signaled ? "killed by signal " : "exit status ";
  text += std::to_string(exec.code);
  if (exec.control != "none") text += ", verdict " + exec.control;
  return text;
}

// Why no fact of this observation can be used; nullopt when they can.
std::optional<Judgement> unusable(const Observation& o) {
  if (!o.exec.finished || !o.exec.started) return inconclusive(howItEnded(o.exec));
  if (!o.facts.problem.empty()) return inconclusive("its facts hold " + o.facts.problem);
  if (!o.facts.has("begun")) return inconclusive("it never began: " + howItEnded(o.exec));
  return std::nullopt;
}

bool isGateRefusal(int64_t error) {
  return error == EPERM || error == EACCES || error == ENOSYS ||
         error >= escape_programs::kDiedBySignal;
}

struct Tries {
  int count = 0;
  std::vector<std::string> through;    // names
  std::map<std::string, int> refused;  // by errno's name

  std::string refusals() const {
    std::vector<std::string> parts;
    for (const auto& [error, times] : refused) parts.push_back(error + " x" + number(times));
    return number(count) + (count == 1 ? " try" : " tries") + " refused: " + join(parts);
  }
};

Tries countTries(const Facts& facts) {
  Tries tries;
  for (const Fact& fact : facts.items) {
    bool isTry = fact.key.starts_with("try_");
    bool isGate = fact.key.starts_with("gate_");
    if (!isTry && !isGate) continue;
    // -1: there was no way to try (no child to be had).
    if (fact.value < 0) continue;
    tries.count++;
    if (isTry ? fact.value == 0 : !isGateRefusal(fact.value)) {
      std::string what = fact.key.substr(isTry ? 4 : 5);
      if (std::find(tries.through.begin(), tries.through.end(), what) == tries.through.end()) {
        tries.through.push_back(what);
      }
    } else {
      tries.refused[errnoName(fact.value)]++;
    }
  }
  return tries;
}

// For programs whose every attempt must be refused.
Judgement allRefused(const Observation& o, const char* control) {
  if (auto problem = unusable(o)) return *problem;
  Tries tries = countTries(o.facts);
  if (!tries.through.empty()) return escaped("succeeded: " + join(tries.through));
  if (o.exec.stopped && o.exec.control == "syscall") {
    return contained("syscall", withCounters("killed for a system call", o.exec));
  }
  if (!o.facts.has("done")) return inconclusive("it did not finish: " + howItEnded(o.exec));
  if (tries.count == 0) return inconclusive("it could try nothing");
  return contained(control, tries.refusals());
}

Judgement networkRefused(const Observation& o) {
  return allRefused(o, "network");
}
Judgement filesystemRefused(const Observation& o) {
  return allRefused(o, "filesystem");
}
Judgement privilegesRefused(const Observation& o) {
  return allRefused(o, "privileges");
}

Judgement connectOutside(const Observation& o) {
  if (!o.outside.heard.empty()) return escaped("connected: " + join(o.outside.heard));
  if (!o.outside.listening) return inconclusive("the listeners outside do not answer");
  Judgement judgement = allRefused(o, "network");
  if (judgement.containment == Containment::kContained) {
    judgement.evidence = "nothing arrived outside; " + judgement.evidence;
  }
  return judgement;
}

Judgement writeOutside(const Observation& o) {
  if (!o.outside.files.empty()) return escaped("on the host: " + join(o.outside.files));
  if (auto problem = unusable(o)) return *problem;
  int64_t paths = o.facts.most("paths");
  if (!o.facts.has("done") || paths == 0) {
    return inconclusive("it did not finish: " + howItEnded(o.exec));
  }
  std::map<std::string, int> refused;
  int64_t inside = 0;
  for (const Fact& fact : o.facts.items) {
    if (!fact.key.starts_with("path") || fact.key == "paths") continue;
    if (fact.value == 0) {
      inside++;
    } else {
      refused[errnoName(fact.value)]++;
    }
  }
  if (inside > 0 && !o.outside.filesChecked) {
    return escaped(number(inside) + " files written in places that can't be looked at");
  }
  std::vector<std::string> parts;
  for (const auto& [error, times] : refused) parts.push_back(error + " x" + number(times));
  std::string text = "0 of " + number(paths) + " files on the host; " + join(parts);
  if (inside > 0) text += "; " + number(inside) + " in places of the sandbox's own";
  return contained("filesystem", text);
}

Judgement readShadow(const Observation& o) {
  if (o.facts.most("bytes") > 0) return escaped(number(o.facts.most("bytes")) + " bytes read");
  return allRefused(o, "filesystem");
}

// A program that took memory: `got` of `wanted` bytes, refused with `error`.
Judgement memoryTaken(const Observation& o, int64_t got, int64_t wanted, int64_t error) {
  int64_t limit = static_cast<int64_t>(o.limits.memoryBytes);
  if (got > limit) return escaped("held " + mebibytes(got) + ", limit " + mebibytes(limit));
  if (got >= wanted && wanted > 0) return escaped("got all of " + mebibytes(wanted));
  std::string reached = mebibytes(got) + " of " + mebibytes(wanted);
  if (verdictNames(o, "memory")) return contained("memory", withCounters(reached, o.exec));
  if (error == ENOMEM || error == EAGAIN) {
    return contained("memory", reached + ", then " + errnoName(error) + " (told by the program)");
  }
  return inconclusive(reached + "; " + howItEnded(o.exec));
}

Judgement memory(const Observation& o) {
  if (auto problem = unusable(o)) return *problem;
  // The last progress line before a kill may be up to 8 MiB behind; `wanted`
  // comes with the end only.
  return memoryTaken(o, o.facts.most("touched"), o.facts.most("wanted", 1024 * kMiB),
                     o.facts.last("error").value_or(0));
}

Judgement threeChildren(const Observation& o) {
  if (auto problem = unusable(o)) return *problem;
  int64_t limit = static_cast<int64_t>(o.limits.memoryBytes);
  int64_t each = o.facts.most("each");
  if (o.facts.most("started") != 3 || each >= limit || 3 * each <= limit) {
    return inconclusive("three children below the cap did not start");
  }
  if (o.facts.most("together") > limit) {
    return escaped("held " + mebibytes(o.facts.most("together")) + " together, limit " +
                   mebibytes(limit));
  }
  std::string reached =
      "three of " + mebibytes(each) + " each: " + number(o.facts.most("killed")) + " killed";
  if (verdictNames(o, "memory")) return contained("memory", withCounters(reached, o.exec));
  if (o.facts.most("refused") > 0) {
    return contained("memory",
                     number(o.facts.most("refused")) + " refused memory (told by the program)");
  }
  return inconclusive(reached + "; " + howItEnded(o.exec));
}

Judgement cpu(const Observation& o) {
  if (auto problem = unusable(o)) return *problem;
  int64_t limit = static_cast<int64_t>(o.limits.cpuTimeMs);
  int64_t burned = std::max(o.facts.most("burned_ms"), static_cast<int64_t>(o.exec.cpuMs));
  std::string text = "burned " + number(burned) + " ms, limit " + number(limit) + " ms";
  if (burned > limit + kCpuSlackMs) return escaped(text);
  if (verdictNames(o, "cpu_time")) return contained("cpu_time", withCounters(text, o.exec));
  return inconclusive(text + "; " + howItEnded(o.exec));
}

Judgement sleeping(const Observation& o) {
  if (auto problem = unusable(o)) return *problem;
  int64_t limit = static_cast<int64_t>(o.limits.wallMs);
  int64_t slept = std::max(o.facts.most("slept_ms"), static_cast<int64_t>(o.exec.wallMs));
  std::string text = "lived " + number(slept) + " ms, limit " + number(limit) + " ms";
  if (slept > limit + kWallSlackMs) return escaped(text);
  if (verdictNames(o, "wall_clock")) return contained("wall_clock", withCounters(text, o.exec));
  return inconclusive(text + "; " + howItEnded(o.exec));
}

// A program that made processes: `made` of `wanted`, refused with `error`.
Judgement processesMade(const Observation& o, int64_t made, int64_t wanted) {
  int64_t error = o.facts.last("error").value_or(0);
  int64_t limit = static_cast<int64_t>(o.limits.pids);
  std::string reached = number(made) + " of " + number(wanted) + " at once";
  if (made >= wanted || made > limit) return escaped(reached + ", limit " + number(limit));
  // The counter first: an EAGAIN alone doesn't say whose limit it was, and out
  // of memory is another control than out of processes.
  for (const char* control : {"processes", "memory", "host_limit"}) {
    if (verdictNames(o, control)) return contained(control, withCounters(reached, o.exec));
  }
  reached += ", then " + errnoName(error) + " (told by the program)";
  if (error == ENOMEM) return contained("memory", reached);
  if (error == EAGAIN) return contained("processes", reached);
  return inconclusive(reached + "; " + howItEnded(o.exec));
}

Judgement forkMany(const Observation& o) {
  if (auto problem = unusable(o)) return *problem;
  if (!o.facts.has("alive")) {
    if (verdictNames(o, "memory")) return contained("memory", counters(o.exec));
    return inconclusive(howItEnded(o.exec));
  }
  return processesMade(o, o.facts.most("alive"), o.facts.most("wanted"));
}

Judgement zombies(const Observation& o) {
  if (auto problem = unusable(o)) return *problem;
  if (!o.facts.has("made")) return inconclusive(howItEnded(o.exec));
  return processesMade(o, o.facts.most("made"), o.facts.most("wanted"));
}

Judgement flood(const Observation& o) {
  int64_t cap = static_cast<int64_t>(o.limits.outputBytes);
  int64_t delivered = static_cast<int64_t>(o.exec.stdoutDelivered);
  std::string text = number(delivered) + " bytes delivered of " +
                     std::to_string(o.exec.stdoutTotal) + ", cap " + number(cap);
  if (delivered > cap) return escaped(text);
  if (auto problem = unusable(o)) return *problem;
  if (verdictNames(o, "output")) return contained("output", withCounters(text, o.exec));
  if (o.exec.stdoutDropped > 0) return contained("output", text);
  return inconclusive(text + "; " + howItEnded(o.exec));
}

Judgement bigFile(const Observation& o) {
  if (auto problem = unusable(o)) return *problem;
  int64_t limit = static_cast<int64_t>(o.limits.fileSizeBytes);
  int64_t size = std::max(o.facts.most("size"), o.facts.most("by_tricks"));
  std::string text = "a file of " + mebibytes(size) + ", limit " + mebibytes(limit);
  if (size > limit) return escaped(text);
  for (const char* control : {"file_size", "disk", "memory"}) {
    if (verdictNames(o, control)) return contained(control, withCounters(text, o.exec));
  }
  int64_t error = o.facts.last("error").value_or(0);
  if (error == EFBIG) return contained("file_size", text + ", then EFBIG (told by the program)");
  if (error == ENOSPC) return contained("disk", text + ", then ENOSPC (told by the program)");
  return inconclusive(text + "; " + howItEnded(o.exec));
}

Judgement openFiles(const Observation& o) {
  if (auto problem = unusable(o)) return *problem;
  int64_t limit = static_cast<int64_t>(o.limits.files);
  int64_t opened = o.facts.most("opened");
  int64_t error = o.facts.last("error").value_or(0);
  std::string text = number(opened) + " opened, limit " + number(limit);
  // Descriptors are numbers below the limit: the highest says more than a count.
  if (opened > limit || o.facts.most("highest") >= limit) return escaped(text);
  if (!o.facts.has("opened")) return inconclusive(howItEnded(o.exec));
  if (error == EMFILE) return contained("files", text + ", then EMFILE");
  return inconclusive(text + ", then " + errnoName(error));
}

Judgement killAll(const Observation& o) {
  if (auto problem = unusable(o)) return *problem;
  if (!o.armed) {
    int64_t reachable = o.facts.most("reachable");
    if (reachable > 0) return escaped(number(reachable) + " processes may be killed");
    return o.facts.has("seen") ? contained("privileges", "no other process may be killed")
                               : inconclusive(howItEnded(o.exec));
  }
  if (o.facts.last("survived") != 1) return inconclusive(howItEnded(o.exec));
  if (o.facts.most("bait") == 0 && o.facts.most("killed") == 0) {
    return inconclusive("the signal reached nobody");
  }
  return contained("privileges",
                   number(o.facts.most("bait")) + " of its own killed, the agent answers");
}

Judgement inheritedFds(const Observation& o) {
  if (auto problem = unusable(o)) return *problem;
  if (!o.facts.has("examined")) return inconclusive(howItEnded(o.exec));
  std::vector<std::string> held;
  for (const char* kind :
       {"extra", "directories", "climbed", "sockets", "files", "devices", "other"}) {
    if (o.facts.most(kind) > 0) held.push_back(kind + (" " + number(o.facts.most(kind))));
  }
  if (!held.empty()) return escaped("holds " + join(held));
  return contained("files", "its three streams and nothing else among " +
                                number(o.facts.most("examined")) + " numbers");
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

// Filling a file system of `limit` bytes.
Judgement fill(const Observation& o, uint64_t limit) {
  if (auto problem = unusable(o)) return *problem;
  int64_t written = o.facts.most("written");
  int64_t error = o.facts.last("error").value_or(0);
  int64_t most = static_cast<int64_t>(limit);
  std::string text = mebibytes(written) + " written, limit " + mebibytes(most);
  if (written > most) return escaped(text);
  if (written == 0 && error == EROFS) return contained("filesystem", "EROFS");
  if (written == 0) return inconclusive("nothing could be written: " + errnoName(error));
  for (const char* control : {"disk", "memory"}) {
    if (verdictNames(o, control)) return contained(control, withCounters(text, o.exec));
  }
  if (error == ENOSPC || error == EDQUOT) {
    return contained("disk", text + ", then " + errnoName(error) + " (told by the program)");
  }
  return inconclusive(text + "; " + howItEnded(o.exec));
}

Judgement fillTmp(const Observation& o) {
  return fill(o, o.limits.tmpBytes);
}
Judgement fillShm(const Observation& o) {
  return fill(o, o.limits.shmBytes);
}

Judgement manyInodes(const Observation& o) {
  if (auto problem = unusable(o)) return *problem;
  if (!o.armed) return inconclusive("not done where nothing contains it");
  int64_t made = o.facts.most("made");
  int64_t wanted = o.facts.most("wanted", made + 1);
  int64_t error = o.facts.last("error").value_or(0);
  std::string text = number(made) + " files made";
  if (made >= wanted) return escaped(text);
  for (const char* control : {"memory", "disk"}) {
    if (verdictNames(o, control)) return contained(control, withCounters(text, o.exec));
  }
  if (error == ENOSPC || error == EDQUOT) {
    return contained("disk", text + ", then " + errnoName(error) + " (told by the program)");
  }
  return inconclusive(text + "; " + howItEnded(o.exec));
}

Judgement sysvShm(const Observation& o) {
  if (auto problem = unusable(o)) return *problem;
  int64_t error = o.facts.last("error").value_or(0);
  int64_t held = o.facts.most("held");
  if (held == 0 && isGateRefusal(error) && error != 0) {
    return contained("privileges", "refused: " + errnoName(error));
  }
  if (error == ENOSPC) error = ENOMEM;  // the kernel's limit on segments
  return memoryTaken(o, held, 1024 * kMiB, error);
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

Judgement netlink(const Observation& o) {
  if (o.facts.most("outside") > 0) {
    return escaped(number(o.facts.most("outside")) + " interfaces that lead outside");
  }
  return allRefused(o, "network");
}

Judgement socketScan(const Observation& o) {
  if (auto problem = unusable(o)) return *problem;
  if (!o.facts.has("done")) return inconclusive(howItEnded(o.exec));
  if (o.facts.most("named") > 0) {
    return escaped(number(o.facts.most("named")) + " named sockets of others in sight");
  }
  if (o.facts.most("control_sockets") > 0) {
    return escaped(number(o.facts.most("control_sockets")) + " control sockets in sight");
  }
  return contained("network", "no named socket in sight");
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
  return contained("privileges", number(o.facts.most("others")) + " processes, " +
                                     errnoName(o.facts.last("error").value_or(0)));
}

Judgement devices(const Observation& o) {
  if (o.facts.most("beyond") > 0) {
    return escaped(number(o.facts.most("beyond")) + " devices beyond the basic ones");
  }
  return allRefused(o, "filesystem");
}

Judgement symlinkMaze(const Observation& o) {
  if (auto problem = unusable(o)) return *problem;
  if (!o.facts.has("done") || o.facts.most("made") == 0) return inconclusive(howItEnded(o.exec));
  return contained("filesystem", number(o.facts.most("made")) + " traps and " +
                                     number(o.facts.most("depth")) + " levels, the agent answers");
}

struct Row {
  const char* program;
  Predicate predicate;
};

constexpr Row kPredicates[] = {
    {"connect", connectOutside},
    {"raw_socket", networkRefused},
    {"write_outside", writeOutside},
    {"read_shadow", readShadow},
    {"mount", filesystemRefused},
    {"memory", memory},
    {"cpu", cpu},
    {"sleep", sleeping},
    {"fork", forkMany},
    {"three_children", threeChildren},
    {"flood", flood},
    {"big_file", bigFile},
    {"files", openFiles},
    {"kill_all", killAll},
    {"user_namespace", privilegesRefused},
    {"ptrace_agent", privilegesRefused},
    {"agent_memory", privilegesRefused},
    {"module_load", privilegesRefused},
    {"mknod", privilegesRefused},
    {"setuid_binary", privilegesRefused},
    {"raise_rlimits", privilegesRefused},
    {"write_proc_sys", filesystemRefused},
    {"sysrq", filesystemRefused},
    {"write_cgroup", filesystemRefused},
    {"overwrite_agent_exe", filesystemRefused},
    {"inherited_fds", inheritedFds},
    {"daemon", daemonOutlives},
    {"fill_tmp", fillTmp},
    {"fill_shm", fillShm},
    {"core_rlimit", coreRlimit},
    {"io_uring", privilegesRefused},
    {"bpf", privilegesRefused},
    {"userfaultfd", privilegesRefused},
    {"keyctl", privilegesRefused},
    {"perf_event_open", privilegesRefused},
    {"stop_agent", privilegesRefused},
    {"steal_descriptors", stealDescriptors},
    {"become_root", privilegesRefused},
    {"posture", posture},
    {"memfd_exec", posture},
    {"chroot", privilegesRefused},
    {"file_handles", privilegesRefused},
    {"hard_links", filesystemRefused},
    {"rename_mounts", filesystemRefused},
    {"symlink_maze", symlinkMaze},
    {"many_inodes", manyInodes},
    {"sysv_shm", sysvShm},
    {"zombies", zombies},
    {"devices", devices},
    {"system_wide", privilegesRefused},
    {"terminal", filesystemRefused},
    {"netlink", netlink},
    {"socket_scan", socketScan},
    {"foreign_abi", privilegesRefused},
};

}  // namespace

const char* name(Containment containment) {
  switch (containment) {
    case Containment::kContained:
      return "contained";
    case Containment::kEscaped:
      return "escaped";
    case Containment::kInconclusive:
      return "inconclusive";
  }
  return "inconclusive";
}

std::string errnoName(int64_t error) {
  if (error > escape_programs::kDiedBySignal) {
    return "signal " + number(error - escape_programs::kDiedBySignal);
  }
  const char* known =
      error > 0 && error < 4096 ? strerrorname_np(static_cast<int>(error)) : nullptr;
  return known != nullptr ? known : "errno " + number(error);
}

Judgement judge(const Observation& o) {
  const Row* row = std::find_if(std::begin(kPredicates), std::end(kPredicates),
                                [&](const Row& each) { return each.program == o.program; });
  if (row == std::end(kPredicates)) return inconclusive("no such program");
  Judgement judgement = row->predicate(o);
  if (o.exec.control == "sandbox_lost") {
    return escaped("the sandbox died: " + withCounters(howItEnded(o.exec), o.exec));
  }
  if (o.outside.released && !o.outside.receiptComplete) {
    return escaped("left behind: " + o.outside.receiptLeft);
  }
  if (judgement.containment != Containment::kContained) return judgement;
  if (!o.outside.answersAfter) return escaped("the sandbox does not answer any more");
  if (!o.outside.released) return inconclusive("the release was not answered");
  return judgement;
}

}  // namespace cordon::escape
