#include "frontend/verdict/verdict.h"

#include <algorithm>
#include <array>
#include <csignal>

#include "frontend/verdict/findings.h"

namespace cordon::verdict {
namespace {

// docs/verdicts.md has this as its first table. A sandbox that died after the
// exec had ended is no fact about the program: it is only among the others.
constexpr std::array kStoppedOrder = {
    Control::kSandboxLost, Control::kCancelled, Control::kWallClock, Control::kCpuTime,
    Control::kMemory,      Control::kHostLimit, Control::kFileSize,  Control::kSyscall,
};
constexpr std::array kRefusedOrder = {
    Control::kMemory,    Control::kProcesses, Control::kHostLimit,
    Control::kCpuTime,   Control::kFileSize,  Control::kDisk,
    Control::kWallClock, Control::kCancelled, Control::kOutput,
};

bool namesTheVerdict(const Finding& finding, const Facts& facts) {
  return finding.control != Control::kDisk || !exitedZero(facts);
}

template <size_t N>
const Finding* first(const std::vector<Finding>& findings, const Facts& facts, bool stopped,
                     const std::array<Control, N>& order) {
  for (Control control : order) {
    for (const Finding& finding : findings) {
      if (finding.control == control && finding.stopped == stopped &&
          namesTheVerdict(finding, facts)) {
        return &finding;
      }
    }
  }
  return nullptr;
}

void addNote(std::string& note, const std::string& more) {
  if (more.empty()) return;
  if (!note.empty()) note += "; ";
  note += more;
}

std::string processesText(uint32_t count) {
  return std::to_string(count) + (count == 1 ? " process" : " processes");
}

// A signal that a control could have sent, when none did.
std::string unexplainedSignal(const Facts& facts) {
  for (auto [signal, text] : {std::pair{SIGKILL, "SIGKILL"}, {SIGXCPU, "SIGXCPU"}}) {
    if (diedOf(facts, signal)) {
      return std::string("main died of ") + text + ", but nothing of ours sent it";
    }
  }
  if (diedOf(facts, SIGXFSZ)) {
    return "main died of SIGXFSZ, but no file at the limit was found: it is gone or was never one, "
           "or the program sent the signal";
  }
  return "";
}

}  // namespace

Verdict judge(const Facts& facts) {
  std::vector<Finding> findings = findAll(facts);
  const Finding* chosen = first(findings, facts, true, kStoppedOrder);
  if (chosen == nullptr) chosen = first(findings, facts, false, kRefusedOrder);

  Verdict verdict;
  if (chosen != nullptr) {
    verdict.control = chosen->control;
    verdict.stopped = chosen->stopped;
    verdict.limit = chosen->limit;
    verdict.observed = chosen->observed;
    verdict.shared = chosen->shared;
    verdict.evidence = chosen->evidence;
    verdict.note = chosen->note;
  } else {
    verdict.note = unexplainedSignal(facts);
  }
  for (const Finding& finding : findings) {
    if (&finding == chosen) continue;
    verdict.evidence.insert(verdict.evidence.end(), finding.evidence.begin(),
                            finding.evidence.end());
    auto& others = verdict.others;
    if (finding.control != verdict.control &&
        std::find(others.begin(), others.end(), finding.control) == others.end()) {
      others.push_back(finding.control);
    }
  }
  if (facts.leftBehind > 0) {
    addNote(verdict.note, processesText(facts.leftBehind) + " of earlier execs " +
                              (facts.leftBehind == 1 ? "was" : "were") + " still running");
  }
  if (facts.exit && facts.exit->leftRunning > 0) {
    addNote(verdict.note, "main left " + processesText(facts.exit->leftRunning) + " running");
  }
  return verdict;
}

const char* name(Control control) {
  switch (control) {
    case Control::kNone:
      return "none";
    case Control::kMemory:
      return "memory";
    case Control::kProcesses:
      return "processes";
    case Control::kHostLimit:
      return "host_limit";
    case Control::kCpuTime:
      return "cpu_time";
    case Control::kFileSize:
      return "file_size";
    case Control::kDisk:
      return "disk";
    case Control::kWallClock:
      return "wall_clock";
    case Control::kOutput:
      return "output";
    case Control::kSyscall:
      return "syscall";
    case Control::kCancelled:
      return "cancelled";
    case Control::kSandboxLost:
      return "sandbox_lost";
  }
  return "unknown";
}

const char* name(Source source) {
  switch (source) {
    case Source::kKernel:
      return "kernel";
    case Source::kAgent:
      return "agent";
    case Source::kGuest:
      return "guest";
    case Source::kFrontend:
      return "frontend";
  }
  return "unknown";
}

}  // namespace cordon::verdict
