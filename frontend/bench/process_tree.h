// The processes of a cordon instance and what they use, from /proc.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace cordon::bench {

// The process that listens at "unix:/path": of `cordon up`, by SO_PEERCRED. 0
// when it can't be told (another host's socket, a service manager's).
pid_t listenerOf(const std::string& address);

// A process and all its descendants.
std::vector<pid_t> treeOf(pid_t root);

std::string commandName(pid_t pid);
uint64_t residentKib(pid_t pid);
// Proportional set size: shared pages count in shares. 0 when it can't be read.
uint64_t proportionalKib(pid_t pid);
// User and system time, in clock ticks of sysconf(_SC_CLK_TCK).
uint64_t cpuTicks(pid_t pid);
// Likewise, of the children that it has waited for, and of theirs.
uint64_t endedChildrensCpuTicks(pid_t pid);

// Memory that the kernel itself uses for processes, cgroups, mounts, sockets
// and namespaces, and tmpfs: of the whole machine.
uint64_t kernelKib();

}  // namespace cordon::bench
