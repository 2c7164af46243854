// What the broker must not forget: which sandboxes exist, and whose id range is
// whose. Written before a sandbox's first effect, removed after its last.
#pragma once
#include <kj/memory.h>
#include <kj/one-of.h>

#include <cstdint>
#include <string>
#include <vector>

#include "broker/cgroups.h"
#include "broker/main/failure.h"
#include "runtimes/runtime.h"

namespace cordon::broker {

struct LedgerEntry {
  std::string name;
  uint32_t owner = 0;
  std::string tokenHash;
  std::string runtime;
  std::string image;
  std::string directory;
  std::string cgroup;  // path, "" = none
  int64_t createdUnixMs = 0;
  runtimes::IdRange ids;
  rpc::SandboxState state = rpc::SandboxState::CREATING;
  std::vector<LeftOver> left;  // what a destroy could not remove yet
};

struct LedgerFinding {
  LedgerEntry entry;  // only `name` is meaningful when damaged
  bool damaged = false;
};

class Ledger {
 public:
  virtual ~Ledger() noexcept(false) = default;
  // Claims a range when `wantIds` (host-wide) and writes the record, as one
  // step: entry.ids is filled in. Nothing is left when refused.
  virtual kj::Maybe<Failure> open(LedgerEntry& entry, bool wantIds) = 0;
  virtual void update(const LedgerEntry& entry) = 0;
  // Gives the range back and removes the record. Idempotent.
  virtual std::vector<LeftOver> close(const LedgerEntry& entry) = 0;
  // Records found, also those that can't be read.
  virtual std::vector<LedgerFinding> findings() = 0;
};

}  // namespace cordon::broker
