// Whether anything builds up: as many sandboxes after each other as were asked
// for, with what the kernel holds at the start and at the end.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <sstream>

#include "frontend/bench/internal.h"
#include "frontend/bench/process_tree.h"
#include "frontend/bench/samples.h"

namespace cordon::bench {

namespace {

using Clock = std::chrono::steady_clock;

constexpr unsigned kLooks = 10;  // over the whole run

struct Look {
  unsigned done = 0;
  double latency = 0;  // p50 since the look before
  int64_t netNamespaces = 0, availableKib = 0, slabKib = 0, cgroups = 0, dying = 0, mounts = 0;
};

// Active objects of a slab; -1 where it is merged with others or can't be read.
int64_t objectsOf(const std::string& slab) {
  std::ifstream file("/proc/slabinfo");
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    std::string name;
    int64_t active = 0;
    if (fields >> name >> active && name == slab) return active;
  }
  return -1;
}

int64_t memoryField(const std::string& name) {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(name + ":", 0) == 0) return std::stoll(line.substr(name.size() + 1));
  }
  return -1;
}

// Of all hierarchies together, those being removed included (v1 shows no more).
int64_t cgroupCount() {
  std::ifstream file("/proc/cgroups");
  int64_t sum = 0;
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    std::string name;
    int64_t hierarchy = 0, count = 0;
    if (fields >> name >> hierarchy >> count) sum += count;
  }
  return sum;
}

int64_t dyingDescendants() {
  for (const char* path : {"/sys/fs/cgroup/cgroup.stat", "/sys/fs/cgroup/unified/cgroup.stat"}) {
    std::ifstream file(path);
    std::string name;
    int64_t value = 0;
    while (file >> name >> value) {
      if (name == "nr_dying_descendants") return value;
    }
  }
  return -1;
}

int64_t mountCount() {
  std::ifstream file("/proc/self/mountinfo");
  return std::count(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>(), '\n');
}

Look look(unsigned done, const std::vector<double>& times) {
  Look now;
  now.done = done;
  now.latency = times.empty() ? 0 : median(times);
  now.netNamespaces = objectsOf("net_namespace");
  now.availableKib = memoryField("MemAvailable");
  now.slabKib = memoryField("SUnreclaim");
  now.cgroups = cgroupCount();
  now.dying = dyingDescendants();
  now.mounts = mountCount();
  return now;
}

std::string describe(const Look& at) {
  char text[256];
  std::snprintf(text, sizeof text,
                "after %u: p50 %.2f ms, net namespaces %lld, cgroups %lld (dying on v2 %lld), "
                "mounts %lld, slab that can't be reclaimed %lld KiB, available %lld KiB",
                at.done, at.latency, static_cast<long long>(at.netNamespaces),
                static_cast<long long>(at.cgroups), static_cast<long long>(at.dying),
                static_cast<long long>(at.mounts), static_cast<long long>(at.slabKib),
                static_cast<long long>(at.availableKib));
  return text;
}

}  // namespace

std::vector<Row> measureCycles(const Context& context) {
  const unsigned cycles = context.options.cycles;
  if (cycles == 0) return {};
  std::vector<double> all, since;
  std::string story;
  double first = 0, last = 0;
  auto report = [&](unsigned done) {
    std::string line = describe(look(done, since));
    context.progress("cycles: " + line);
    story += (story.empty() ? "" : "; ") + line;
    if (!since.empty()) {
      last = median(since);
      if (first == 0) first = last;
    }
    since.clear();
  };
  for (unsigned i = 0; i < kWarmUps; ++i) {
    context.client.run(sandboxOf(""), client::command({kProgram}));
  }
  report(0);
  const unsigned each = std::max(1u, cycles / kLooks);
  for (unsigned done = 0; done < cycles;) {
    auto start = Clock::now();
    requireSuccess(context.client.run(sandboxOf(""), client::command({kProgram})));
    since.push_back(millisecondsSince(start));
    all.push_back(since.back());
    if (++done % each == 0) report(done);
  }
  Row row = withBaseline(rowOf("cold runs one after another", "ms", all), "the first tenth", first);
  row.target = "no growth (<= 1.5 x)";
  row.ratio = last / first;
  row.met = *row.ratio <= 1.5;
  row.note = story;
  return {row};
}

}  // namespace cordon::bench
