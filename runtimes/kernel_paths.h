// What of /proc and /sys a sandbox doesn't see, or not to write, whatever its
// runtime; and how large what it has is.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace cordon::runtimes {

// What engines mask, older and newer ones together: facts about the host or
// side channels to it. Absolute; what does not exist is skipped. `cpus`: that
// this host may have.
std::vector<std::string> maskedPaths(unsigned cpus);

// Absolute, each there on every kernel that matters, else skipped.
std::vector<std::string> readOnlyPaths();

// RLIMIT_NOFILE of the agent: for its own streams and pipes, and no less than a
// workload may have.
uint64_t agentFiles(uint64_t workloadFiles);

// For a tmpfs of so many bytes, one inode for each page: an empty file costs
// kernel memory, too.
uint64_t scratchInodes(uint64_t bytes);

}  // namespace cordon::runtimes
