// Limits of a sandbox: ceilings, defaults, and the check that they fit together.
#pragma once
#include <kj/common.h>
#include <kj/one-of.h>

#include <cstdint>
#include <string>

#include "ipc/broker.capnp.h"

namespace cordon::broker {

// Every field explicit. Units as in ipc/broker.capnp.
struct ResolvedLimits {
  uint64_t memoryBytes = 0;
  uint32_t pids = 0;
  uint32_t cpuMillis = 0;
  uint64_t cpuTimeMs = 0;
  uint64_t wallMs = 0;
  uint64_t fileSizeBytes = 0;
  uint32_t files = 0;
  uint64_t diskBytes = 0;
  uint64_t tmpBytes = 0;
  uint64_t shmBytes = 0;
  uint64_t outputBytes = 0;
  uint64_t rootBytes = 0;  // 0 = the root is read-only
};

// What this host allows at most, read once at start (memory and CPUs of the
// machine, hard rlimits).
struct Ceilings : ResolvedLimits {
  static Ceilings ofThisHost();
};

struct LimitRefusal {
  rpc::Reason reason;
  std::string subject;  // field name as in the schema, e.g. "memoryBytes"
  uint64_t limit = 0;
  std::string detail;  // one sentence
};

// Fills in defaults (memory 512 MiB, pids 256, one CPU, cpuTime 60 s, wall
// 60 s, fileSize = disk, files 1024, disk min(64 MiB, memory/4), tmp and shm
// min(64 MiB, memory/8), output 1 MiB, a read-only root), or says which field is refused and why.
// Minimums that make sense are enforced (memory 8 MiB, pids 2, ...).
kj::OneOf<ResolvedLimits, LimitRefusal> resolveLimits(rpc::Limits::Reader asked,
                                                      const Ceilings& ceilings);

}  // namespace cordon::broker
