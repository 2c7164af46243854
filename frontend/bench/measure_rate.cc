// Many at once: fresh sandboxes a second by eight clients, and what the service
// itself uses of the CPU while others arrive at a steady rate.
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <exception>
#include <mutex>
#include <random>
#include <thread>

#include "frontend/bench/internal.h"
#include "frontend/bench/process_tree.h"
#include "frontend/bench/samples.h"

namespace cordon::bench {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr unsigned kClients = 8;
constexpr unsigned kRounds = 3;
constexpr milliseconds kRound(4000);
constexpr double kMostRate = 200;

// Arrivals of the open loop: at random, at this rate, whatever is still under way.
constexpr double kArrivalsPerSecond = 40;
constexpr unsigned kArrivals = 600;
constexpr char kWork[] = "0.2";  // seconds of sleep, which use no CPU
constexpr unsigned kSeed = 4;
constexpr milliseconds kSampled(20);

// The first failure of several threads.
class Failure {
 public:
  template <typename Work>
  void guard(Work work) {
    try {
      work();
    } catch (...) {
      std::lock_guard lock(mutex);
      if (!first) first = std::current_exception();
    }
  }
  bool any() {
    std::lock_guard lock(mutex);
    return first != nullptr;
  }
  void rethrow() {
    if (first) std::rethrow_exception(first);
  }

 private:
  std::mutex mutex;
  std::exception_ptr first;
};

double runOnce(client::Client& client, const std::vector<std::string>& argv) {
  auto start = Clock::now();
  client::Outcome outcome = client.run(sandboxOf(kJail), client::command(argv));
  double elapsed = millisecondsSince(start);
  requireSuccess(outcome);
  return elapsed;
}

std::vector<Row> closedLoop(const Context& context) {
  std::vector<double> rates, latencies;
  std::mutex mutex;
  for (unsigned round = 0; round <= kRounds; ++round) {  // the first warms up
    context.progress("8 clients: round " + std::to_string(round) + " of " +
                     std::to_string(kRounds));
    Failure failure;
    std::vector<double> times;
    auto start = Clock::now();
    {
      std::vector<std::jthread> clients;
      for (unsigned i = 0; i < kClients; ++i) {
        clients.emplace_back([&] {
          failure.guard([&] {
            client::Client own(context.client.address());
            std::vector<double> mine;
            while (Clock::now() - start < kRound && !failure.any()) {
              mine.push_back(runOnce(own, {kProgram}));
            }
            std::lock_guard lock(mutex);
            times.insert(times.end(), mine.begin(), mine.end());
          });
        });
      }
    }
    failure.rethrow();
    if (round == 0) continue;
    rates.push_back(static_cast<double>(times.size()) / millisecondsSince(start) * 1000);
    latencies.insert(latencies.end(), times.begin(), times.end());
  }
  Row row = rowOf("jail runs, 8 clients", "1/s", rates);
  row.target = ">= 200 / s";
  row.ratio = row.p50 / kMostRate;
  row.met = row.p50 >= kMostRate;
  row.note = "fresh sandboxes for /bin/true, destroyed again; clients and service on this machine";
  return {row, rowOf("  one of them", "ms", latencies)};
}

// Of the services and of everything that they have waited for.
double cpuSeconds(pid_t root) {
  uint64_t ticks = 0;
  for (pid_t pid : treeOf(root)) ticks += cpuTicks(pid) + endedChildrensCpuTicks(pid);
  return static_cast<double>(ticks) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

struct OpenLoop {
  std::vector<double> times;    // in the system: from the arrival to the answer
  std::vector<double> present;  // sandboxes at once, as the service says
  double seconds = 0, cpuSeconds = 0, clientSeconds = 0;
};

double ownCpuSeconds() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) / 1e9;
}

OpenLoop arrive(const Context& context, pid_t root) {
  OpenLoop result;
  std::mutex mutex;
  Failure failure;
  std::mt19937 random(kSeed);
  std::exponential_distribution<double> pause(kArrivalsPerSecond);
  double before = cpuSeconds(root), clientBefore = ownCpuSeconds();
  auto start = Clock::now();
  std::jthread sampler([&](std::stop_token stop) {
    failure.guard([&] {
      while (!stop.stop_requested()) {
        result.present.push_back(static_cast<double>(context.client.list().sandboxes_size()));
        std::this_thread::sleep_for(kSampled);  // the interval of the measurement
      }
    });
  });
  {
    std::vector<std::jthread> arrivals;
    double at = 0;
    for (unsigned i = 0; i < kArrivals && !failure.any(); ++i) {
      at += pause(random);
      auto due =
          start + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(at));
      std::this_thread::sleep_until(due);
      arrivals.emplace_back([&, due] {
        failure.guard([&] {
          runOnce(context.client, {"/bin/sleep", kWork});
          double elapsed = millisecondsSince(due);
          std::lock_guard lock(mutex);
          result.times.push_back(elapsed);
        });
      });
    }
    sampler.request_stop();
    sampler.join();
    result.seconds = millisecondsSince(start) / 1000;
  }
  result.cpuSeconds = cpuSeconds(root) - before;
  result.clientSeconds = ownCpuSeconds() - clientBefore;
  failure.rethrow();
  return result;
}

std::vector<Row> openLoop(const Context& context) {
  const char* target = "<= 0.5 cores";
  pid_t root = listenerOf(context.client.address());
  if (root == 0) {
    return {unmeasured("jail at 40 a second", "cores", target,
                       "needs an instance of `cordon up` on this machine")};
  }
  context.progress("40 arrivals a second of 200 ms of work");
  OpenLoop loop = arrive(context, root);
  double rate = static_cast<double>(loop.times.size()) / loop.seconds;
  double meanTime = 0, meanPresent = 0;
  for (double ms : loop.times) meanTime += ms / 1000 / static_cast<double>(loop.times.size());
  for (double n : loop.present) meanPresent += n / static_cast<double>(loop.present.size());

  Row row = rowOf("jail at 40 a second", "cores", {loop.cpuSeconds / loop.seconds});
  row.n = static_cast<unsigned>(loop.times.size());
  row.target = target;
  row.ratio = row.p50 / 0.5;
  row.met = row.p50 <= 0.5;
  char note[512];
  std::snprintf(note, sizeof note,
                "%zu arrivals in %.2f s = %.1f a second, each %.0f ms in the system: %.1f x %.3f = "
                "%.1f at once by Little's law, %.1f by the service's own list; CPU of the services "
                "and of all that ran in the sandboxes %.2f s = %.1f ms a sandbox (the client's own "
                "%.2f s is not in it)",
                loop.times.size(), loop.seconds, rate, meanTime * 1000, rate, meanTime,
                rate * meanTime, meanPresent, loop.cpuSeconds,
                loop.cpuSeconds * 1000 / static_cast<double>(loop.times.size()),
                loop.clientSeconds);
  row.note = note;
  return {row, rowOf("  time in the system", "ms", loop.times),
          rowOf("  sandboxes at once", "1", loop.present)};
}

}  // namespace

std::vector<Row> measureRate(const Context& context) {
  std::string whyNot = whyNotOffered(context, kJail);
  if (!whyNot.empty()) return {unmeasured("jail runs, 8 clients", "1/s", ">= 200 / s", whyNot)};
  auto rows = closedLoop(context);
  for (Row& row : openLoop(context)) rows.push_back(std::move(row));
  return rows;
}

}  // namespace cordon::bench
