// What the measurements share.
#pragma once
#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "frontend/bench/bench.h"
#include "frontend/bench/coprocess.h"
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
std::vector<Row> measureJail(const Context& context);
std::vector<Row> measureRate(const Context& context);
std::vector<Row> measureScale(const Context& context);
std::vector<Row> measureSteps(const Context& context);
std::vector<Row> measureCycles(const Context& context);
std::vector<Row> measureExplain(const Context& context);
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

client::v1::SandboxSpec sandboxOf(const std::string& runtime);

// Does the service offer it? "" when it does, else why not.
std::string whyNotOffered(const Context& context, const std::string& runtime);
// Why raw runc can't be measured here; "" when it can.
std::string whyNoRawRunc(const Context& context);
std::unique_ptr<Coprocess> startRawRunc(const Context& context);
std::unique_ptr<Coprocess> startSpawnFloor(const Context& context);
// The by-hand container: asks "cold" and "first-byte". Needs root.
std::unique_ptr<Coprocess> startCloneFloor(const Context& context);

inline constexpr char kJail[] = "jail";
// The smallest program that is worth a sandbox.
inline constexpr char kProgram[] = "/bin/true";
inline constexpr unsigned kWarmUps = 5;
// Sides are measured in turns of so many: what runs before a command fills the
// caches for it or empties them, and should be a command of the same kind. So
// does a join of a cgroup: for some 10 ms after one, the next waits for no grace
// period.
inline constexpr unsigned kTurn = 10;

// Calls `turn(how many)` until there are as many as the options ask for.
template <typename Turn>
void inTurns(const Context& context, const char* what, Turn turn) {
  const unsigned n = context.options.samples;
  for (unsigned done = 0; done < n; done += kTurn) {
    context.progress(std::string(what) + ": " + std::to_string(done) + " of " + std::to_string(n));
    turn(std::min(kTurn, n - done));
  }
}

// A sandbox for the time of a measurement.
class LiveSandbox {
 public:
  LiveSandbox(client::Client& owner, const std::string& runtime);
  // Its time to live ends it when the release fails: the measurement's own error
  // matters more.
  ~LiveSandbox();
  LiveSandbox(const LiveSandbox&) = delete;
  LiveSandbox& operator=(const LiveSandbox&) = delete;
  // Runs kProgram; how long it took the client.
  double exec();

 private:
  client::Client& client;
  std::string id;
};

Row withBaseline(Row row, std::string name, double baseline);

// Throws when the program did not exit with 0: such a sample measures nothing.
void requireSuccess(const client::Outcome& outcome);

}  // namespace cordon::bench
