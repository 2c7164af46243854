// What the broker must not forget: which sandboxes exist, and whose id range is
// whose. Written before a sandbox's first effect, removed after its last.
#pragma once
#include <kj/async.h>
#include <kj/memory.h>
#include <kj/one-of.h>

#include <vector>

#include "broker/main/failure.h"
#include "broker/records.h"

namespace cordon::broker {

class Ledger {
 public:
  virtual ~Ledger() noexcept(false) = default;
  // Claims a range when `wantIds` (host-wide) and writes the record, as one
  // step: the record's id fields are filled in. Nothing is left when refused.
  // Waits for other brokers of the host, on the timer and with a bound; `record`
  // is used until it resolves.
  virtual kj::Promise<kj::Maybe<Failure>> open(SandboxRecord& record, bool wantIds) = 0;
  // Refused: what was written before is there still.
  virtual kj::Maybe<Failure> update(const SandboxRecord& record) = 0;
  // Gives the range back and removes the record; what could not be. Idempotent.
  // Waits as open() does.
  virtual kj::Promise<std::vector<LeftOver>> close(const SandboxRecord& record) = 0;
  // Records that are there, also those that can't be read.
  virtual std::vector<Records::Found> findings() = 0;
};

}  // namespace cordon::broker
