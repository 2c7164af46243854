// A verdict as one line for a terminal.
#include <cstdio>

#include "frontend/verdict/escape.h"
#include "frontend/verdict/verdict.h"

namespace cordon::verdict {
namespace {

std::string bytesText(uint64_t bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  uint64_t scale = 1;
  while (unit < 4 && bytes / scale >= 1024) {
    scale *= 1024;
    ++unit;
  }
  char text[48];
  if (bytes % scale == 0) {
    snprintf(text, sizeof(text), "%llu %s", static_cast<unsigned long long>(bytes / scale),
             units[unit]);
  } else {
    snprintf(text, sizeof(text), "%.1f %s", double(bytes) / double(scale), units[unit]);
  }
  return text;
}

std::string secondsText(uint64_t ms) {
  char text[48];
  if (ms < 1000) {
    snprintf(text, sizeof(text), "%llu ms", static_cast<unsigned long long>(ms));
  } else if (ms % 1000 == 0) {
    snprintf(text, sizeof(text), "%llu s", static_cast<unsigned long long>(ms / 1000));
  } else {
    snprintf(text, sizeof(text), "%.2f s", double(ms) / 1000);
  }
  return text;
}

std::string amount(Control control, uint64_t value) {
  switch (control) {
    case Control::kMemory:
    case Control::kFileSize:
    case Control::kDisk:
    case Control::kOutput:
      return bytesText(value);
    case Control::kCpuTime:
    case Control::kWallClock:
    case Control::kCancelled:
      return secondsText(value);
    case Control::kProcesses:
      return std::to_string(value);
    case Control::kNone:
    case Control::kHostLimit:
    case Control::kSyscall:
    case Control::kSandboxLost:
      break;
  }
  return std::to_string(value);
}

// ": limit 2 s, observed 2.04 s". A refused fork's figure is in the evidence.
std::string figures(const Verdict& verdict) {
  std::string text;
  if (verdict.limit > 0) text = "limit " + amount(verdict.control, verdict.limit);
  bool measured = verdict.control == Control::kCpuTime || verdict.control == Control::kWallClock ||
                  verdict.control == Control::kOutput;
  if (measured && verdict.observed > 0) {
    text +=
        (text.empty() ? "observed " : ", observed ") + amount(verdict.control, verdict.observed);
  }
  return text;
}

}  // namespace

std::string describe(const Verdict& verdict) {
  if (verdict.control == Control::kNone) return "";
  std::string text = "cordon: ";
  text += verdict.stopped ? "stopped by " : "not stopped, but limited by ";
  text += name(verdict.control);
  std::string facts = figures(verdict);
  if (!verdict.evidence.empty()) {
    const Evidence& evidence = verdict.evidence.front();
    if (!facts.empty()) facts += ", ";
    facts += evidence.counter + " " + std::to_string(evidence.before) + " -> " +
             std::to_string(evidence.after) + " (" + name(evidence.source) + ")";
  }
  if (!facts.empty()) text += ": " + facts;
  if (verdict.shared) text += ", a counter that others moved too";
  for (size_t i = 0; i < verdict.others.size(); ++i) {
    text += i == 0 ? "; also " : ", ";
    text += name(verdict.others[i]);
  }
  if (!verdict.note.empty()) text += "; " + verdict.note;
  return escapeControls(text);
}

}  // namespace cordon::verdict
