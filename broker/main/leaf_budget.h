// How many leaves all sandboxes together may have: each holds descriptors of
// this process, which one owner's execs must not use up for everybody.
#pragma once
#include <sys/resource.h>

#include <algorithm>
#include <cstdint>

namespace cordon::broker {

struct LeafBudget {
  uint64_t most = 0;
  uint64_t used = 0;

  static LeafBudget ofThisProcess() {
    // Three directories, their `tasks`, a listing and seven counters on v1.
    constexpr uint64_t kDescriptorsOfALeaf = 16;
    // Connections, records, pidfds and what every sandbox holds.
    constexpr uint64_t kReserve = 512;
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    uint64_t files = std::min<uint64_t>(limit.rlim_cur, 1 << 20);
    // Half of the rest: the others are the sandboxes' own.
    return {files > kReserve ? (files - kReserve) / 2 / kDescriptorsOfALeaf : 1, 0};
  }
};

}  // namespace cordon::broker
