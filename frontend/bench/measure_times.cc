// exec in a live sandbox and a cold Run, beside raw runc and posix_spawn.
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "frontend/bench/coprocess.h"
#include "frontend/bench/internal.h"
#include "frontend/bench/samples.h"

namespace cordon::bench {

namespace {

using Clock = std::chrono::steady_clock;

constexpr unsigned kWarmUps = 5;
// Measured in turns of so many: what runs before a command fills the caches for
// it or empties them, and should be a command of the same kind. So does a join
// of a cgroup: for some 10 ms after one, the next waits for no grace period.
constexpr unsigned kTurn = 10;
constexpr char kProgram[] = "/bin/true";

// Why raw runc can't be measured here; "" when it can.
std::string whyNoRawRunc(const Context& context) {
  if (geteuid() != 0) return "raw runc needs root";
  if (context.runc.empty()) return "there is no runc";
  return "";
}

std::unique_ptr<Coprocess> startRawRunc(const Context& context) {
  return std::make_unique<Coprocess>(
      std::vector<std::string>{context.libexec + "/bench/raw-runc", context.runc,
                               context.libexec + "/bench/container-init"});
}

// A sandbox for the time of a measurement.
class LiveSandbox {
 public:
  explicit LiveSandbox(client::Client& owner) : client(owner) {
    id = client.acquire(runcSandbox()).id();
  }
  ~LiveSandbox() {
    try {
      client.release(id);
    } catch (const client::ApiError&) {
      // Its time to live ends it; the measurement's own error matters more.
    }
  }
  LiveSandbox(const LiveSandbox&) = delete;
  LiveSandbox& operator=(const LiveSandbox&) = delete;

  double exec() {
    auto start = Clock::now();
    client::Outcome outcome = client.exec(id, client::command({kProgram}));
    double elapsed = millisecondsSince(start);
    requireSuccess(outcome);
    return elapsed;
  }

 private:
  client::Client& client;
  std::string id;
};

Row withBaseline(Row row, std::string name, double baseline) {
  row.baselineName = std::move(name);
  row.baseline = baseline;
  return row;
}

}  // namespace

std::vector<Row> measureExec(const Context& context) {
  const unsigned n = context.options.samples;
  std::string whyNot = whyNoRawRunc(context);
  std::unique_ptr<Coprocess> raw = whyNot.empty() ? startRawRunc(context) : nullptr;
  Coprocess floor({context.libexec + "/bench/spawn-floor", kProgram});
  LiveSandbox sandbox(context.client);

  for (unsigned i = 0; i < kWarmUps; ++i) {
    sandbox.exec();
    floor.askMilliseconds("spawn");
    if (raw) raw->askMilliseconds("exec");
  }
  std::vector<double> ours, spawn, runc;
  for (unsigned done = 0; done < n; done += kTurn) {
    const unsigned turn = std::min(kTurn, n - done);
    context.progress("exec: " + std::to_string(done) + " of " + std::to_string(n));
    for (unsigned i = 0; i < turn; ++i) ours.push_back(sandbox.exec());
    for (unsigned i = 0; i < turn; ++i) spawn.push_back(floor.askMilliseconds("spawn"));
    for (unsigned i = 0; raw && i < turn; ++i) runc.push_back(raw->askMilliseconds("exec"));
  }

  std::vector<Row> rows;
  const char* fasterTarget = ">= 20 times faster";
  if (raw) {
    Row row = withBaseline(rowOf("exec", "ms", ours), "runc exec", median(runc));
    row.target = fasterTarget;
    row.ratio = *row.baseline / row.p50;
    row.met = *row.ratio >= 20;
    rows.push_back(row);
  } else {
    rows.push_back(unmeasured("exec", "ms", fasterTarget, whyNot));
  }
  Row over = withBaseline(rowOf("exec over spawn", "ms", ours), "posix_spawn", median(spawn));
  over.target = "<= 2 x spawn + 1 ms";
  over.ratio = over.p50 / *over.baseline;
  over.met = over.p50 <= 2 * *over.baseline + 1;
  rows.push_back(over);
  rows.push_back(rowOf("posix_spawn + wait", "ms", spawn));
  if (raw) rows.push_back(rowOf("runc exec", "ms", runc));
  return rows;
}

std::vector<Row> measureCold(const Context& context) {
  const char* target = "<= 1.15 x raw";
  std::string whyNot = whyNoRawRunc(context);
  if (!whyNot.empty()) return {unmeasured("cold run", "ms", target, whyNot)};

  const unsigned n = context.options.samples;
  auto raw = startRawRunc(context);
  auto run = [&] {
    auto start = Clock::now();
    client::Outcome outcome = context.client.run(runcSandbox(), client::command({kProgram}));
    double elapsed = millisecondsSince(start);
    requireSuccess(outcome);
    return std::pair{elapsed, outcome.result.timings()};
  };
  for (unsigned i = 0; i < kWarmUps; ++i) {
    run();
    raw->askMilliseconds("cold");
  }
  std::vector<double> ours, acquire, release, bare, firstByte;
  for (unsigned done = 0; done < n; done += kTurn) {
    const unsigned turn = std::min(kTurn, n - done);
    context.progress("cold run: " + std::to_string(done) + " of " + std::to_string(n));
    for (unsigned i = 0; i < turn; ++i) {
      auto [elapsed, timings] = run();
      ours.push_back(elapsed);
      acquire.push_back(timings.acquire_ms());
      release.push_back(timings.release_ms());
    }
    for (unsigned i = 0; i < turn; ++i) {
      bare.push_back(raw->askMilliseconds("cold"));
      firstByte.push_back(raw->askMilliseconds("last-first-byte"));
    }
  }

  Row row = withBaseline(rowOf("cold run", "ms", ours), "runc run + delete", median(bare));
  row.target = target;
  row.ratio = row.p50 / *row.baseline;
  row.met = *row.ratio <= 1.15;
  return {row, rowOf("  of it acquire", "ms", acquire), rowOf("  of it release", "ms", release),
          rowOf("runc run + delete", "ms", bare), rowOf("  of it first byte", "ms", firstByte)};
}

}  // namespace cordon::bench
