// What cordon uses when nothing runs: memory of idle sandboxes, CPU at rest.
#include <unistd.h>

#include <cstdio>
#include <thread>

#include "frontend/bench/internal.h"
#include "frontend/bench/process_tree.h"
#include "frontend/bench/samples.h"

namespace cordon::bench {

namespace {

// How many of which runtime, and the most that one may take.
struct Idle {
  const char* runtime;
  unsigned sandboxes;
  double mostKib;
};
constexpr Idle kIdle[] = {{"jail", 50, 614.4}, {"runc", 20, 1536}};

constexpr unsigned kMemoryRounds = 5;
constexpr unsigned kRestRounds = 3;
constexpr std::chrono::seconds kRest(2);

struct Memory {
  uint64_t processesKib = 0, kernelKib = 0;
};

Memory memoryOf(pid_t root) {
  Memory memory;
  for (pid_t pid : treeOf(root)) memory.processesKib += proportionalKib(pid);
  memory.kernelKib = kernelKib();
  return memory;
}

double perSandbox(uint64_t before, uint64_t after, unsigned sandboxes) {
  return (static_cast<double>(after) - static_cast<double>(before)) / sandboxes;
}

pid_t requireListener(const Context& context) {
  return listenerOf(context.client.address());
}

std::vector<Row> memoryRows(const Context& context, const Idle& idle) {
  std::string runtime = idle.runtime, name = "idle sandbox, " + runtime;
  char target[64];
  std::snprintf(target, sizeof target, "<= %g KiB at %u", idle.mostKib, idle.sandboxes);
  std::string whyNot = whyNotOffered(context, runtime);
  // A host without runc misses nothing that was promised to it.
  if (!whyNot.empty()) return {unmeasured(name, "KiB", runtime == "runc" ? "" : target, whyNot)};
  pid_t root = requireListener(context);
  if (root == 0 || geteuid() != 0) {
    return {unmeasured(name, "KiB", target,
                       "needs root and an instance of `cordon up` on this machine")};
  }
  // The services' own arenas and caches fill once; they are no sandbox's.
  auto round = [&] {
    Memory before = memoryOf(root);
    std::vector<std::string> sandboxes;
    for (unsigned i = 0; i < idle.sandboxes; ++i) {
      sandboxes.push_back(context.client.acquire(sandboxOf(runtime)).id());
    }
    Memory after = memoryOf(root);
    for (const std::string& id : sandboxes) context.client.release(id);
    return std::pair{before, after};
  };
  round();
  std::vector<double> all, processes, kernel;
  for (unsigned i = 0; i < kMemoryRounds; ++i) {
    context.progress(name + ": round " + std::to_string(i + 1) + " of " +
                     std::to_string(kMemoryRounds));
    auto [before, after] = round();
    processes.push_back(perSandbox(before.processesKib, after.processesKib, idle.sandboxes));
    kernel.push_back(perSandbox(before.kernelKib, after.kernelKib, idle.sandboxes));
    all.push_back(processes.back() + kernel.back());
  }
  Row row = rowOf(name, "KiB", all);
  row.target = target;
  row.ratio = row.p50 / idle.mostKib;
  row.met = *row.ratio <= 1;
  row.note =
      "proportional set size of every process of the instance and the machine's Slab, KernelStack, "
      "PageTables, Percpu and Shmem, with so many sandboxes less without, a share; other programs "
      "on the machine move the kernel's part";
  return {row, rowOf("  of it processes", "KiB", processes),
          rowOf("  of it kernel and tmpfs", "KiB", kernel)};
}

}  // namespace

std::vector<Row> measureMemory(const Context& context) {
  std::vector<Row> rows;
  for (const Idle& idle : kIdle) {
    for (Row& row : memoryRows(context, idle)) rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<Row> measureRest(const Context& context) {
  const char* target = "no CPU";
  pid_t root = requireListener(context);
  if (root == 0) {
    return {unmeasured("at rest", "ms CPU per 2 s", target,
                       "needs an instance of `cordon up` on this machine")};
  }
  client::v1::SandboxSpec spec = sandboxOf("");
  std::string id = context.client.acquire(spec).id();
  requireSuccess(context.client.exec(id, client::command({"/bin/true"})));
  std::this_thread::sleep_for(kRest);  // what the exec caused settles

  auto ticks = [&] {
    uint64_t sum = 0;
    for (pid_t pid : treeOf(root)) sum += cpuTicks(pid);
    return sum;
  };
  std::vector<double> used;
  for (unsigned i = 0; i < kRestRounds; ++i) {
    context.progress("at rest: round " + std::to_string(i + 1) + " of " +
                     std::to_string(kRestRounds));
    uint64_t before = ticks();
    std::this_thread::sleep_for(kRest);  // the interval of the measurement
    used.push_back(static_cast<double>(ticks() - before) * 1000.0 /
                   static_cast<double>(sysconf(_SC_CLK_TCK)));
  }
  context.client.release(id);

  Row row = rowOf("at rest", "ms CPU per 2 s", used);
  row.target = target;
  row.met = row.p50 == 0;
  row.note = "all processes of the instance with one idle sandbox, in the kernel's clock ticks";
  return {row};
}

}  // namespace cordon::bench
