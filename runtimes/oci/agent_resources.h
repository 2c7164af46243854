// Limits of the agent's own cgroup, as the OCI runtime writes them. They must be
// the ones that broker/cgroups.cc sets, because the runtime overwrites those.
#pragma once
#include <cstdint>

namespace cordon::runtimes {

constexpr uint64_t kAgentMemoryBytes = 32 * 1024 * 1024;
constexpr uint64_t kAgentPids = 128;

}  // namespace cordon::runtimes
