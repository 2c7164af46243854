// What cordon uses when nothing runs: memory of idle sandboxes, CPU at rest.
#include <unistd.h>

#include <thread>

#include "frontend/bench/internal.h"
#include "frontend/bench/process_tree.h"
#include "frontend/bench/samples.h"

namespace cordon::bench {

namespace {

constexpr unsigned kSandboxes = 20;
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

double perSandbox(uint64_t before, uint64_t after) {
  return (static_cast<double>(after) - static_cast<double>(before)) / kSandboxes;
}

pid_t requireListener(const Context& context) {
  return listenerOf(context.client.address());
}

}  // namespace

std::vector<Row> measureMemory(const Context& context) {
  const char* target = "<= 1536 KiB at 20";
  pid_t root = requireListener(context);
  if (root == 0 || geteuid() != 0) {
    return {unmeasured("idle sandbox", "KiB", target,
                       "needs root and an instance of `cordon up` on this machine")};
  }
  // The services' own arenas and caches fill once; they are no sandbox's.
  auto round = [&] {
    Memory before = memoryOf(root);
    std::vector<std::string> sandboxes;
    for (unsigned i = 0; i < kSandboxes; ++i) {
      sandboxes.push_back(context.client.acquire(runcSandbox()).id());
    }
    Memory after = memoryOf(root);
    for (const std::string& id : sandboxes) context.client.release(id);
    return std::pair{before, after};
  };
  round();
  std::vector<double> all, processes, kernel;
  for (unsigned i = 0; i < kMemoryRounds; ++i) {
    context.progress("idle sandboxes: round " + std::to_string(i + 1) + " of " +
                     std::to_string(kMemoryRounds));
    auto [before, after] = round();
    processes.push_back(perSandbox(before.processesKib, after.processesKib));
    kernel.push_back(perSandbox(before.kernelKib, after.kernelKib));
    all.push_back(processes.back() + kernel.back());
  }
  Row row = rowOf("idle sandbox", "KiB", all);
  row.target = target;
  row.ratio = row.p50 / 1536;
  row.met = *row.ratio <= 1;
  row.note =
      "proportional set size of every process of the instance and the machine's Slab, KernelStack, "
      "PageTables, Percpu and Shmem, with 20 sandboxes less without, a twentieth; other programs "
      "on the machine move the kernel's part";
  return {row, rowOf("  of it processes", "KiB", processes),
          rowOf("  of it kernel and tmpfs", "KiB", kernel)};
}

std::vector<Row> measureRest(const Context& context) {
  const char* target = "no CPU";
  pid_t root = requireListener(context);
  if (root == 0) {
    return {unmeasured("at rest", "ms CPU per 2 s", target,
                       "needs an instance of `cordon up` on this machine")};
  }
  client::v1::SandboxSpec spec = runcSandbox();
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
