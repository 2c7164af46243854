// More than was given: memory, time, processes, bytes, files.
#include <algorithm>
#include <cerrno>

#include "escape_suite/judging.h"

namespace cordon::escape {
namespace {

// How far past its limit a stop may come: the broker polls CPU time, and a kill
// travels through two processes on a busy machine.
constexpr int64_t kCpuSlackMs = 1000;
constexpr int64_t kWallSlackMs = 2000;

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

}  // namespace

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

}  // namespace cordon::escape
