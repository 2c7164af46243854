// exec in a live sandbox and a cold Run, beside raw runc and posix_spawn.
#include <algorithm>
#include <memory>

#include "frontend/bench/internal.h"
#include "frontend/bench/samples.h"

namespace cordon::bench {

namespace {

using Clock = std::chrono::steady_clock;

constexpr char kFaster[] = ">= 20 times faster";
constexpr char kOverSpawn[] = "<= 2 x spawn + 1 ms";

}  // namespace

std::vector<Row> measureExec(const Context& context) {
  std::string whyNot = whyNotOffered(context, "runc");
  if (!whyNot.empty()) {
    // A host without runc misses nothing that was promised to it.
    return {unmeasured("exec", "ms", "", whyNot)};
  }
  whyNot = whyNoRawRunc(context);
  std::unique_ptr<Coprocess> raw = whyNot.empty() ? startRawRunc(context) : nullptr;
  auto floor = startSpawnFloor(context);
  LiveSandbox sandbox(context.client, "runc");

  for (unsigned i = 0; i < kWarmUps; ++i) {
    sandbox.exec();
    floor->askMilliseconds("spawn");
    if (raw) raw->askMilliseconds("exec");
  }
  std::vector<double> ours, spawn, runc;
  inTurns(context, "exec", [&](unsigned turn) {
    for (unsigned i = 0; i < turn; ++i) ours.push_back(sandbox.exec());
    for (unsigned i = 0; i < turn; ++i) spawn.push_back(floor->askMilliseconds("spawn"));
    for (unsigned i = 0; raw && i < turn; ++i) runc.push_back(raw->askMilliseconds("exec"));
  });

  std::vector<Row> rows;
  if (raw) {
    Row row = withBaseline(rowOf("exec", "ms", ours), "runc exec", median(runc));
    row.target = kFaster;
    row.ratio = *row.baseline / row.p50;
    row.met = *row.ratio >= 20;
    rows.push_back(row);
  } else {
    rows.push_back(unmeasured("exec", "ms", kFaster, whyNot));
  }
  Row over = withBaseline(rowOf("exec over spawn", "ms", ours), "posix_spawn", median(spawn));
  over.target = kOverSpawn;
  over.ratio = over.p50 / *over.baseline;
  over.met = over.p50 <= 2 * *over.baseline + 1;
  rows.push_back(over);
  rows.push_back(rowOf("posix_spawn + wait", "ms", spawn));
  if (raw) rows.push_back(rowOf("runc exec", "ms", runc));
  return rows;
}

std::vector<Row> measureCold(const Context& context) {
  const char* target = "<= 1.15 x raw";
  std::string whyNot = whyNotOffered(context, "runc");
  if (!whyNot.empty()) return {unmeasured("cold run", "ms", "", whyNot)};
  whyNot = whyNoRawRunc(context);
  if (!whyNot.empty()) return {unmeasured("cold run", "ms", target, whyNot)};

  auto raw = startRawRunc(context);
  auto run = [&] {
    auto start = Clock::now();
    client::Outcome outcome = context.client.run(sandboxOf("runc"), client::command({kProgram}));
    double elapsed = millisecondsSince(start);
    requireSuccess(outcome);
    return std::pair{elapsed, outcome.result.timings()};
  };
  for (unsigned i = 0; i < kWarmUps; ++i) {
    run();
    raw->askMilliseconds("cold");
  }
  std::vector<double> ours, acquire, release, bare, firstByte;
  inTurns(context, "cold run", [&](unsigned turn) {
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
  });

  Row row = withBaseline(rowOf("cold run", "ms", ours), "runc run + delete", median(bare));
  row.target = target;
  row.ratio = row.p50 / *row.baseline;
  row.met = *row.ratio <= 1.15;
  return {row, rowOf("  of it acquire", "ms", acquire), rowOf("  of it release", "ms", release),
          rowOf("runc run + delete", "ms", bare), rowOf("  of it first byte", "ms", firstByte)};
}

}  // namespace cordon::bench
