// Whether the thousandth sandbox costs what the first did.
#include <unistd.h>

#include <array>

#include "frontend/bench/internal.h"
#include "frontend/bench/samples.h"

namespace cordon::bench {

namespace {

using Clock = std::chrono::steady_clock;

constexpr unsigned kMany = 1000;
constexpr double kMostGrowth = 1.2;
constexpr const char* kNames[] = {"acquire", "exec", "list page"};
constexpr int kPage = 1;  // as long at 1 as at 1000

// What the kernel itself charges for a container beside so many others.
constexpr size_t kFloor = 3;

using Times = std::array<std::vector<double>, 4>;

// As many live sandboxes as there are now, and one more.
void measureNow(const Context& context, Times& times) {
  auto& client = context.client;
  LiveSandbox live(client, "");
  std::unique_ptr<Coprocess> floor = geteuid() == 0 ? startCloneFloor(context) : nullptr;
  for (unsigned i = 0; i < kWarmUps; ++i) live.exec();
  inTurns(context, "at this many", [&](unsigned turn) {
    for (unsigned i = 0; i < turn; ++i) {
      auto start = Clock::now();
      std::string id = client.acquire(sandboxOf("")).id();
      times[0].push_back(millisecondsSince(start));
      client.release(id);
    }
    for (unsigned i = 0; i < turn; ++i) times[1].push_back(live.exec());
    for (unsigned i = 0; floor && i < turn; ++i) {
      times[kFloor].push_back(floor->askMilliseconds("cold"));
    }
    client::v1::ListRequest page;
    page.set_page_size(kPage);
    for (unsigned i = 0; i < turn; ++i) {
      auto start = Clock::now();
      client.listPage(page);
      times[2].push_back(millisecondsSince(start));
    }
  });
}

// All that it was asked for, or the service's refusal.
std::string fill(client::Client& client, std::vector<std::string>& ids) {
  try {
    while (ids.size() + 2 < kMany) ids.push_back(client.acquire(sandboxOf("")).id());
  } catch (const client::ApiError& error) {
    if (error.code() != "RESOURCE_EXHAUSTED") throw;
    return error.what();
  }
  return "";
}

}  // namespace

std::vector<Row> measureScale(const Context& context) {
  auto& client = context.client;
  const char* target = "<= 1.2 x at 1";
  Times few, many;
  measureNow(context, few);
  context.progress("filling up to 1000 sandboxes");
  std::vector<std::string> ids;
  std::string full = fill(client, ids);
  if (full.empty()) measureNow(context, many);
  for (const std::string& id : ids) client.release(id);
  if (!full.empty()) {
    return {unmeasured("at 1000 sandboxes", "ms", target,
                       full + " at " + std::to_string(ids.size()) +
                           " (start the instance with --max-sandboxes and --max-per-owner 1100)")};
  }
  measureNow(context, few);  // before and after: what drifts meanwhile is on both sides

  std::vector<Row> rows;
  for (size_t i = 0; i < std::size(kNames); ++i) {
    Row row = withBaseline(rowOf(std::string(kNames[i]) + " at 1000 sandboxes", "ms", many[i]),
                           "at 1", median(few[i]));
    row.target = target;
    row.ratio = row.p50 / *row.baseline;
    row.met = *row.ratio <= kMostGrowth;
    rows.push_back(row);
  }
  if (!few[kFloor].empty()) {
    Row row = withBaseline(rowOf("  by-hand clone3 at 1000", "ms", many[kFloor]), "at 1",
                           median(few[kFloor]));
    row.ratio = row.p50 / *row.baseline;
    rows.push_back(row);
  }
  return rows;
}

}  // namespace cordon::bench
