// Names the control that stopped a program, from what was counted.
//
// Pure functions of the facts: no I/O, no clock. The precedence is the table in
// docs/verdicts.md, and verdict_test.cc is that table. A verdict says only what
// was counted, and by whom.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cordon::verdict {

enum class Control : uint8_t {
  kNone,
  kMemory,
  kProcesses,
  kHostLimit,
  kCpuTime,
  kFileSize,
  kDisk,
  kWallClock,
  kOutput,
  kSyscall,
  kCancelled,
  kSandboxLost,
};
enum class Source : uint8_t { kKernel, kAgent, kGuest, kFrontend };
enum class Scope : uint8_t { kExec, kSandbox, kHost };

// Kinds that verdicts use; others are ignored.
enum class Kind : uint8_t {
  kOomKills,
  kPidsRefused,
  kCpuUsageUs,
  kMemoryPeakBytes,
  kOther,
};

struct Counter {
  Kind kind;
  Scope scope;
  uint64_t value;
  std::string file;  // "memory.oom_control oom_kill"
};

struct Limits {  // as applied; 0 = none
  uint64_t memoryBytes = 0, pids = 0, cpuTimeMs = 0, wallMs = 0, fileSizeBytes = 0, diskBytes = 0,
           outputBytes = 0;
};

struct Scratch {
  std::string path;
  uint64_t totalBytes = 0, freeBytes = 0, totalInodes = 0, freeInodes = 0;
};

// What ended the exec from our side; whoever fired first.
enum class Fired : uint8_t { kNobody, kDeadline, kCancel, kCpuTime };

// How main ended, from the agent's `exited`.
struct Exit {
  bool signaled = false;
  uint32_t code = 0;
  uint64_t cpuUs = 0;  // rusage user + system
  uint64_t stdoutTotal = 0, stdoutDropped = 0, stderrTotal = 0, stderrDropped = 0;
  bool killedByDeadline = false;  // the agent's backstop
  std::vector<Scratch> scratch;
  std::string fileAtLimit;
  uint32_t leftRunning = 0;
};

struct Facts {
  Limits limits;
  std::vector<Counter> before, after;  // from beginExec and endExec (kernel)
  bool countersShared = false;         // others used sandbox-scope counters
  uint32_t leftBehind = 0;             // processes that earlier execs left running
  Fired fired = Fired::kNobody;
  uint64_t wallUs = 0;  // our clock, start to end

  using Exit = verdict::Exit;
  std::optional<Exit> exit;  // absent when it never came
  // Bytes that the frontend itself did not deliver past the cap.
  uint64_t frontendDropped = 0;

  // The sandbox's init, from the broker's waitid.
  // It was destroyed (released, or its time was up) while the exec ran.
  bool sandboxDestroyed = false;
  bool initExited = false;
  bool initSignaled = false;
  uint32_t initCode = 0;
};

struct Evidence {
  std::string counter;
  uint64_t before = 0, after = 0;
  Source source = Source::kKernel;
};

struct Verdict {
  Control control = Control::kNone;
  bool stopped = false;
  uint64_t limit = 0, observed = 0;
  bool shared = false;
  std::vector<Evidence> evidence;
  std::vector<Control> others;
  std::string note;
};

Verdict judge(const Facts& facts);

const char* name(Control control);  // "wall_clock"
const char* name(Source source);    // "kernel"

// One line for a terminal, e.g.
// "cordon: stopped by memory: limit 128 MiB, memory.oom_control oom_kill 0 -> 1 (kernel)".
// "" when there is nothing to say. Control characters are escaped.
std::string describe(const Verdict& verdict);

}  // namespace cordon::verdict
