#include "frontend/verdict/findings.h"

#include <algorithm>
#include <csignal>
#include <optional>

namespace cordon::verdict {

bool diedOf(const Facts& facts, int signal) {
  return facts.exit && facts.exit->signaled && facts.exit->code == uint32_t(signal);
}

bool exitedZero(const Facts& facts) {
  return facts.exit && !facts.exit->signaled && facts.exit->code == 0;
}

namespace {

constexpr uint64_t kPage = 4096;

using Maybe = std::optional<Finding>;

const char* scopeName(Scope scope) {
  switch (scope) {
    case Scope::kExec:
      return "exec";
    case Scope::kSandbox:
      return "sandbox";
    case Scope::kHost:
      return "host";
  }
  return "unknown";
}

// --- counters ---------------------------------------------------------------

// A counter read twice.
struct Delta {
  const Counter* after;
  uint64_t before = 0;
  uint64_t moved() const { return after->value > before ? after->value - before : 0; }
};

// The counters of a kind in a scope. One that was not read at the start counts
// from 0 in an exec's own leaf, which is new, and says nothing elsewhere.
std::vector<Delta> deltas(const Facts& facts, Kind kind, Scope scope) {
  std::vector<Delta> found;
  for (const Counter& after : facts.after) {
    if (after.kind != kind || after.scope != scope) continue;
    auto before = std::find_if(facts.before.begin(), facts.before.end(), [&](const Counter& c) {
      return c.kind == kind && c.scope == scope && c.file == after.file;
    });
    if (before != facts.before.end()) {
      found.push_back({&after, before->value});
    } else if (scope == Scope::kExec) {
      found.push_back({&after, 0});
    }
  }
  return found;
}

uint64_t moved(const std::vector<Delta>& all) {
  uint64_t sum = 0;
  for (const Delta& delta : all) sum += delta.moved();
  return sum;
}

void addEvidence(Finding& finding, const std::vector<Delta>& all) {
  for (const Delta& delta : all) {
    if (delta.moved() == 0) continue;
    finding.evidence.push_back({delta.after->file + " (" + scopeName(delta.after->scope) + ")",
                                delta.before, delta.after->value, Source::kKernel});
  }
}

// --- how main ended ---------------------------------------------------------

bool exitedByItself(const Facts& facts) {
  return facts.exit && !facts.exit->signaled;
}

// What we fired is a SIGKILL to the whole exec; main ended of it unless its
// own end, told by the agent, was another one.
bool endedByWhatWeFired(const Facts& facts) {
  return facts.fired != Fired::kNobody && (!facts.exit || diedOf(facts, SIGKILL));
}

bool endedByAgentsDeadline(const Facts& facts) {
  return facts.fired == Fired::kNobody && facts.exit && facts.exit->killedByDeadline &&
         diedOf(facts, SIGKILL);
}

void addWaitStatus(Finding& finding, const Facts& facts) {
  if (!facts.exit || !facts.exit->signaled) return;
  finding.evidence.push_back({"wait status of main, signal", 0, facts.exit->code, Source::kAgent});
}

// --- one control each -------------------------------------------------------

Maybe sandboxLost(const Facts& facts) {
  bool noAnswer = !facts.exit && facts.fired == Fired::kNobody;
  if (!noAnswer && !facts.initExited && !facts.sandboxDestroyed) return std::nullopt;
  Finding finding(Control::kSandboxLost);
  finding.stopped = noAnswer;
  if (facts.initExited) {
    finding.evidence.push_back({facts.initSignaled ? "wait status of the sandbox's init, signal"
                                                   : "wait status of the sandbox's init, exit code",
                                0, facts.initCode, Source::kKernel});
  } else if (facts.sandboxDestroyed) {
    finding.evidence.push_back(
        {"answers of the broker that the sandbox is gone", 0, 1, Source::kFrontend});
    finding.note = "it was released, or its time was up";
  } else {
    finding.evidence.push_back(
        {"streams to the agent that ended without a result", 0, 1, Source::kFrontend});
  }
  return finding;
}

Maybe cancelled(const Facts& facts) {
  if (facts.fired != Fired::kCancel) return std::nullopt;
  Finding finding(Control::kCancelled);
  finding.stopped = endedByWhatWeFired(facts);
  finding.observed = facts.wallUs / 1000;
  finding.evidence.push_back({"cancellations by the client", 0, 1, Source::kFrontend});
  return finding;
}

Maybe wallClock(const Facts& facts) {
  bool ours = facts.fired == Fired::kDeadline;
  if (!ours && !endedByAgentsDeadline(facts)) return std::nullopt;
  Finding finding(Control::kWallClock);
  finding.stopped = !ours || endedByWhatWeFired(facts);
  finding.limit = facts.limits.wallMs;
  finding.observed = facts.wallUs / 1000;
  if (ours) {
    finding.evidence.push_back({"wall clock (us)", 0, facts.wallUs, Source::kFrontend});
  } else {
    finding.evidence.push_back({"kills by the agent's own deadline", 0, 1, Source::kAgent});
  }
  if (!finding.stopped) finding.note = "main ended by itself as the deadline fired";
  return finding;
}

// The CPU time of the exec, by the best witness there is.
struct CpuUse {
  uint64_t us = 0;
  bool ours = true;  // false: other execs are counted with it
  Evidence evidence;
};

std::optional<CpuUse> cpuUse(const Facts& facts) {
  for (Scope scope : {Scope::kExec, Scope::kSandbox}) {
    auto all = deltas(facts, Kind::kCpuUsageUs, scope);
    if (all.empty()) continue;
    const Delta& first = all.front();
    return CpuUse{first.moved(), scope == Scope::kExec || !facts.countersShared,
                  Evidence{first.after->file + " (" + scopeName(scope) + ")", first.before,
                           first.after->value, Source::kKernel}};
  }
  if (!facts.exit) return std::nullopt;
  return CpuUse{facts.exit->cpuUs, true,
                Evidence{"rusage of main (us)", 0, facts.exit->cpuUs, Source::kAgent}};
}

bool oomKilledOneOfOurs(const Facts& facts);

// The kernel checks RLIMIT_CPU by counting clock ticks, which ran up to 18 %
// ahead of the exact figure at 1 s, and 4 % at 3 s, on a busy virtual machine.
bool reached(uint64_t us, uint64_t limitUs) {
  uint64_t least = limitUs - limitUs / 10;
  return us >= least - std::min<uint64_t>(least, 250'000);
}

// Main ended by RLIMIT_CPU, which the agent sets from the same limit: SIGXCPU
// at the limit in whole seconds, SIGKILL one second later. Either signal with
// less CPU time than that was sent by somebody else, such as main itself.
bool endedByCpuRlimit(const Facts& facts, uint64_t us) {
  uint64_t limitMs = facts.limits.cpuTimeMs;
  uint64_t seconds = limitMs / 1000 + (limitMs % 1000 > 0 ? 1 : 0);
  uint64_t softUs = std::min<uint64_t>(seconds, UINT32_MAX) * 1'000'000;
  if (diedOf(facts, SIGXCPU)) return reached(us, softUs);
  return diedOf(facts, SIGKILL) && facts.fired == Fired::kNobody && !endedByAgentsDeadline(facts) &&
         !oomKilledOneOfOurs(facts) && reached(us, softUs + 1'000'000);
}

Maybe cpuTime(const Facts& facts) {
  auto use = cpuUse(facts);
  bool fired = facts.fired == Fired::kCpuTime;
  if (!fired && (facts.limits.cpuTimeMs == 0 || !use || !use->ours)) return std::nullopt;
  Finding finding(Control::kCpuTime);
  finding.limit = facts.limits.cpuTimeMs;
  if (use) {
    finding.observed = use->us / 1000;
    finding.shared = !use->ours;
    finding.evidence.push_back(use->evidence);
  }
  if (fired && endedByWhatWeFired(facts)) {
    finding.stopped = true;
    return finding;
  }
  if (endedByCpuRlimit(facts, use ? use->us : 0)) {
    finding.stopped = true;
    addWaitStatus(finding, facts);
    return finding;
  }
  // Main failed by itself after the exec had used up its CPU time: a child
  // may have met RLIMIT_CPU.
  bool over = use && use->us / 1000 >= facts.limits.cpuTimeMs;
  if (fired || (over && exitedByItself(facts) && !exitedZero(facts))) return finding;
  return std::nullopt;
}

// The scope whose OOM counter can speak for this exec: its own leaf if it has
// one (the kernel counts at the victim's cgroup), else the sandbox's, else the
// host's.
std::vector<Delta> oomDeltas(const Facts& facts, Scope& scope) {
  for (Scope candidate : {Scope::kExec, Scope::kSandbox, Scope::kHost}) {
    auto all = deltas(facts, Kind::kOomKills, candidate);
    scope = candidate;
    if (!all.empty()) return all;
  }
  return {};
}

bool oomKilledOneOfOurs(const Facts& facts) {
  Scope scope;
  return moved(oomDeltas(facts, scope)) > 0;
}

// An OOM kill is counted at the victim whichever limit was hit. Where the
// sandbox's peak stayed well below its limit, it was not this one.
bool limitWasNeverReached(const Facts& facts) {
  auto peaks = deltas(facts, Kind::kMemoryPeakBytes, Scope::kSandbox);
  uint64_t limit = facts.limits.memoryBytes;
  if (peaks.empty() || limit == 0) return false;
  uint64_t slack = std::max<uint64_t>(limit / 8, 4u << 20);
  return limit > slack && peaks.front().after->value < limit - slack;
}

uint64_t peakMemory(const Facts& facts) {
  for (Scope scope : {Scope::kSandbox, Scope::kExec}) {
    for (const Counter& counter : facts.after) {
      if (counter.kind == Kind::kMemoryPeakBytes && counter.scope == scope) return counter.value;
    }
  }
  return 0;
}

Maybe memory(const Facts& facts) {
  Scope scope;
  auto all = oomDeltas(facts, scope);
  if (moved(all) == 0) return std::nullopt;
  bool hosts = scope == Scope::kHost || limitWasNeverReached(facts);
  Finding finding(hosts ? Control::kHostLimit : Control::kMemory);
  finding.stopped =
      diedOf(facts, SIGKILL) && !endedByWhatWeFired(facts) && !endedByAgentsDeadline(facts);
  finding.limit = hosts ? 0 : facts.limits.memoryBytes;
  finding.observed = peakMemory(facts);
  finding.shared = scope != Scope::kExec && facts.countersShared;
  addEvidence(finding, all);
  if (finding.stopped) addWaitStatus(finding, facts);
  if (hosts && scope != Scope::kHost) {
    finding.note = "killed for memory while the sandbox was below its own limit";
  }
  if (exitedByItself(facts) && facts.exit->code == 128 + SIGKILL) {
    finding.note = "main exited by itself with 137; a process of it was killed for memory";
  }
  return finding;
}

// A refused fork kills nobody, so `stopped` is never true here.
Maybe processes(const Facts& facts) {
  for (Scope scope : {Scope::kExec, Scope::kSandbox}) {
    auto all = deltas(facts, Kind::kPidsRefused, scope);
    if (moved(all) == 0) continue;
    Finding finding(Control::kProcesses);
    finding.limit = facts.limits.pids;
    finding.observed = moved(all);
    finding.shared = scope == Scope::kSandbox && facts.countersShared;
    addEvidence(finding, all);
    return finding;
  }
  return std::nullopt;
}

Maybe hostProcesses(const Facts& facts) {
  auto all = deltas(facts, Kind::kPidsRefused, Scope::kHost);
  if (moved(all) == 0 || processes(facts)) return std::nullopt;
  Finding finding(Control::kHostLimit);
  finding.observed = moved(all);
  finding.shared = facts.countersShared;
  addEvidence(finding, all);
  return finding;
}

Maybe fileSize(const Facts& facts) {
  if (!facts.exit || facts.exit->fileAtLimit.empty() || facts.limits.fileSizeBytes == 0) {
    return std::nullopt;
  }
  Finding finding(Control::kFileSize);
  finding.stopped = diedOf(facts, SIGXFSZ);
  finding.limit = finding.observed = facts.limits.fileSizeBytes;
  finding.evidence.push_back(
      {"size of " + facts.exit->fileAtLimit, 0, facts.limits.fileSizeBytes, Source::kAgent});
  if (finding.stopped) addWaitStatus(finding, facts);
  return finding;
}

Maybe syscall(const Facts& facts) {
  if (!diedOf(facts, SIGSYS)) return std::nullopt;
  Finding finding(Control::kSyscall);
  finding.stopped = true;
  addWaitStatus(finding, facts);
  finding.note = "the wait status does not tell a refused call from a SIGSYS sent by the program";
  return finding;
}

// A full file system is a state and not a count: it names the control only
// where main failed.
Maybe disk(const Facts& facts) {
  if (!facts.exit) return std::nullopt;
  for (const Scratch& scratch : facts.exit->scratch) {
    bool bytesFull = scratch.totalBytes > 0 && scratch.freeBytes < kPage;
    bool inodesFull = scratch.totalInodes > 0 && scratch.freeInodes == 0;
    if (!bytesFull && !inodesFull) continue;
    Finding finding(Control::kDisk);
    finding.limit = scratch.totalBytes;
    finding.observed = scratch.totalBytes - std::min(scratch.freeBytes, scratch.totalBytes);
    finding.evidence.push_back(
        bytesFull
            ? Evidence{"bytes used of " + scratch.path, 0, finding.observed, Source::kAgent}
            : Evidence{"inodes used of " + scratch.path, 0, scratch.totalInodes, Source::kAgent});
    return finding;
  }
  return std::nullopt;
}

Maybe output(const Facts& facts) {
  Finding finding(Control::kOutput);
  finding.limit = facts.limits.outputBytes;
  if (facts.exit) {
    auto look = [&](const char* stream, uint64_t total, uint64_t dropped) {
      if (dropped == 0) return;
      finding.observed = std::max(finding.observed, total);
      finding.evidence.push_back(
          {std::string(stream) + " bytes dropped", 0, dropped, Source::kAgent});
    };
    look("stdout", facts.exit->stdoutTotal, facts.exit->stdoutDropped);
    look("stderr", facts.exit->stderrTotal, facts.exit->stderrDropped);
  }
  if (facts.frontendDropped > 0) {
    finding.observed = std::max(finding.observed, facts.frontendDropped);
    finding.evidence.push_back(
        {"bytes dropped by the frontend", 0, facts.frontendDropped, Source::kFrontend});
  }
  if (finding.evidence.empty()) return std::nullopt;
  return finding;
}

}  // namespace

std::vector<Finding> findAll(const Facts& facts) {
  std::vector<Finding> all;
  for (auto look : {sandboxLost, cancelled, wallClock, cpuTime, memory, processes, hostProcesses,
                    fileSize, syscall, disk, output}) {
    if (auto finding = look(facts)) all.push_back(std::move(*finding));
  }
  return all;
}

}  // namespace cordon::verdict
