// `jail` in one client's eyes: a cold Run, an exec in a live sandbox and a
// release, beside the same by hand, raw runc and posix_spawn.
#include <unistd.h>

#include "frontend/bench/internal.h"
#include "frontend/bench/samples.h"

namespace cordon::bench {

namespace {

using Clock = std::chrono::steady_clock;

constexpr double kOverFloorMs = 3;
constexpr double kMostReleaseMs = 1.5;

// The parts of a Run as its result tells them.
struct Parts {
  std::vector<double> whole, acquire, exec, release;

  void run(client::Client& client) {
    auto start = Clock::now();
    client::Outcome outcome = client.run(sandboxOf(kJail), client::command({kProgram}));
    whole.push_back(millisecondsSince(start));
    requireSuccess(outcome);
    const auto& timings = outcome.result.timings();
    acquire.push_back(timings.acquire_ms());
    exec.push_back(timings.exec_ms());
    release.push_back(timings.release_ms());
  }
};

// Floor and raw runc by their helpers.
struct Bare {
  explicit Bare(std::unique_ptr<Coprocess> helper) : process(std::move(helper)) {}
  std::unique_ptr<Coprocess> process;  // null: can't be measured here
  std::vector<double> whole, firstByte;

  void cold(const char* askFirstByte) {
    if (!process) return;
    whole.push_back(process->askMilliseconds("cold"));
    firstByte.push_back(process->askMilliseconds(askFirstByte));
  }
};

std::vector<Row> coldRows(const Context& context) {
  auto& client = context.client;
  std::string whyNoRunc = whyNoRawRunc(context);
  Bare floor(startCloneFloor(context));
  Bare runc(whyNoRunc.empty() ? startRawRunc(context) : nullptr);
  {
    Parts unused;
    for (unsigned i = 0; i < kWarmUps; ++i) {
      unused.run(client);
      floor.cold("first-byte");
      runc.cold("last-first-byte");
    }
    floor.whole.clear(), floor.firstByte.clear();
    runc.whole.clear(), runc.firstByte.clear();
  }
  Parts ours;
  inTurns(context, "jail cold run", [&](unsigned turn) {
    for (unsigned i = 0; i < turn; ++i) ours.run(client);
    for (unsigned i = 0; i < turn; ++i) floor.cold("first-byte");
    for (unsigned i = 0; i < turn; ++i) runc.cold("last-first-byte");
  });

  std::vector<Row> rows;
  Row row =
      withBaseline(rowOf("jail cold run", "ms", ours.whole), "by-hand clone3", median(floor.whole));
  row.target = "<= by hand + 3 ms";
  row.ratio = row.p50 / *row.baseline;
  row.met = row.p50 <= *row.baseline + kOverFloorMs;
  rows.push_back(row);
  if (runc.process) {
    Row over = withBaseline(rowOf("  over raw runc", "ms", ours.whole), "runc run + delete",
                            median(runc.whole));
    over.target = "<= 0.1 x runc";
    over.ratio = over.p50 / *over.baseline;
    over.met = *over.ratio <= 0.1;
    rows.push_back(over);
  } else {
    rows.push_back(unmeasured("  over raw runc", "ms", "", whyNoRunc));
  }
  rows.push_back(rowOf("  of it acquire", "ms", ours.acquire));
  rows.push_back(rowOf("  of it exec", "ms", ours.exec));
  rows.push_back(rowOf("  of it release", "ms", ours.release));
  rows.push_back(rowOf("by-hand clone3", "ms", floor.whole));
  rows.push_back(rowOf("  of it first byte", "ms", floor.firstByte));
  return rows;
}

std::vector<Row> execRows(const Context& context) {
  auto floor = startSpawnFloor(context);
  LiveSandbox sandbox(context.client, kJail);
  for (unsigned i = 0; i < kWarmUps; ++i) {
    sandbox.exec();
    floor->askMilliseconds("spawn");
  }
  std::vector<double> ours, spawn;
  inTurns(context, "jail exec", [&](unsigned turn) {
    for (unsigned i = 0; i < turn; ++i) ours.push_back(sandbox.exec());
    for (unsigned i = 0; i < turn; ++i) spawn.push_back(floor->askMilliseconds("spawn"));
  });
  Row row = withBaseline(rowOf("jail exec", "ms", ours), "posix_spawn", median(spawn));
  row.target = "<= 2 x spawn + 1 ms";
  row.ratio = row.p50 / *row.baseline;
  row.met = row.p50 <= 2 * *row.baseline + 1;
  return {row, rowOf("  posix_spawn + wait", "ms", spawn)};
}

std::vector<Row> releaseRows(const Context& context) {
  std::vector<double> acquire, release;
  inTurns(context, "jail release", [&](unsigned turn) {
    for (unsigned i = 0; i < turn; ++i) {
      auto start = Clock::now();
      std::string id = context.client.acquire(sandboxOf(kJail)).id();
      acquire.push_back(millisecondsSince(start));
      start = Clock::now();
      context.client.release(id);
      release.push_back(millisecondsSince(start));
    }
  });
  Row row = rowOf("jail release", "ms", release);
  row.target = "<= 1.5 ms";
  row.ratio = row.p50 / kMostReleaseMs;
  row.met = row.p50 <= kMostReleaseMs;
  return {row, rowOf("  acquire before it", "ms", acquire)};
}

}  // namespace

std::vector<Row> measureJail(const Context& context) {
  std::string whyNot = whyNotOffered(context, kJail);
  if (whyNot.empty() && geteuid() != 0) whyNot = "the by-hand floor needs root";
  if (!whyNot.empty()) return {unmeasured("jail cold run", "ms", "<= by hand + 3 ms", whyNot)};
  auto rows = coldRows(context);
  for (auto* more : {execRows, releaseRows}) {
    for (Row& row : more(context)) rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace cordon::bench
