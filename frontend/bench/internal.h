// What the measurements share.
#pragma once
#include <chrono>
#include <string>
#include <vector>

#include "frontend/bench/bench.h"
#include "frontend/cli/client.h"

namespace cordon::bench {

struct Context {
  const Options& options;
  const Progress& progress;
  std::string libexec;  // where vm-agent and bench/ are
  std::string runc;     // "" = none found
  client::Client& client;
};

// One group each, in the order in which they run.
std::vector<Row> measureExec(const Context& context);
std::vector<Row> measureCold(const Context& context);
std::vector<Row> measureMemory(const Context& context);
std::vector<Row> measureOutput(const Context& context);
std::vector<Row> measureRest(const Context& context);

Machine readMachine(const std::string& runc);

inline double millisecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

// A row of these samples: n, p50 and p99.
Row rowOf(std::string name, std::string unit, const std::vector<double>& samples);
// A row that says why it could not be measured.
Row unmeasured(std::string name, std::string unit, std::string target, std::string why);

client::v1::SandboxSpec runcSandbox();

// Throws when the program did not exit with 0: such a sample measures nothing.
void requireSuccess(const client::Outcome& outcome);

}  // namespace cordon::bench
