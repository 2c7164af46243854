// Finding and killing one's own descendants through /proc.
#pragma once
#include <sys/types.h>

#include <cstddef>
#include <vector>

namespace cordon::agent {

// Walks the tree below this process, leaving out the direct children in
// `except` and what is below them, and sends `signal` (0: none) to each living
// process found. Returns how many were found alive. What forks meanwhile may be
// missed: repeat until there is nothing left. `tracersToo`: what traces one of
// them gets SIGKILL as well.
size_t signalDescendants(int signal, const std::vector<pid_t>& except, bool tracersToo = false);

}  // namespace cordon::agent
