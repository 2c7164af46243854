// What the writable file systems look like at the end of an exec.
#pragma once
#include <cstdint>
#include <ctime>
#include <string>

#include "ipc/guest.capnp.h"
#include "vm_agent/config.h"

namespace cordon::agent {

// Fills `exited.scratch` (mount points that can't be read are left out).
void reportScratch(const Config& config, guest::Exited::Builder exited);

// Path of a regular file below `root` whose size is exactly `bytes`; "" when
// the bounded search (512 entries, 4 levels) found none. Follows no link. Only
// files that changed at `since` (CLOCK_REALTIME_COARSE, as the kernel stamps
// them) or later count.
std::string findFileOfSize(const std::string& root, uint64_t bytes, timespec since);

}  // namespace cordon::agent
