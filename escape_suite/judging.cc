#include "escape_suite/judging.h"

#include <algorithm>
#include <cerrno>

#include "escape_suite/programs/died_by_signal.h"

namespace cordon::escape {

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

std::string join(const std::vector<std::string>& parts, const char* between) {
  std::string all;
  for (const std::string& part : parts) {
    if (!all.empty()) all += between;
    all += part;
  }
  return all;
}

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

std::string Tries::refusals() const {
  std::vector<std::string> parts;
  for (const auto& [error, times] : refused) parts.push_back(error + " x" + number(times));
  return number(count) + (count == 1 ? " try" : " tries") + " refused: " + join(parts);
}

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

}  // namespace cordon::escape
