// Id ranges: every live sandbox has 65,536 host uids and gids of its own, out of
// a configured span, unlike those of any other sandbox of any broker on this
// host.
//
// A claim is a symbolic link REGISTRY/SLOT -> path of the record of the sandbox
// that has it, made together with the record. A claim whose record does not exist
// any more is stale and may be taken. The registry is on tmpfs: after a boot
// there are no sandboxes and no claims.
//
// Whoever makes, takes over or removes a claim holds the lock of that slot: byte
// SLOT of REGISTRY/.lock (an open file description lock, so that it goes with its
// holder). One lock for all would be one for every broker of the host to wait
// for: for one that gets no CPU, or that was stopped. A slot that is locked is
// passed by instead, and one that is in use is never locked by others, so that
// giving back meets nobody. Nothing here waits or sleeps.
//
// All brokers of a host must see each other's records under the same path (a
// broker whose state is on a private mount would look like one that is gone).
#pragma once
#include <kj/common.h>
#include <kj/io.h>
#include <kj/one-of.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ipc/broker.capnp.h"

namespace cordon::broker {

constexpr uint32_t kIdsPerRange = 65536;
constexpr uint32_t kDefaultSpanFirst = 0x70000000;  // 1879048192
constexpr uint32_t kDefaultSpanRanges = 1024;

struct IdSpan {
  uint32_t first = kDefaultSpanFirst;
  uint32_t ranges = kDefaultSpanRanges;  // range 0 is for the services' own uids
};

// "FIRST:COUNT" (COUNT ranges). Null unless both are plain numbers, at least two
// ranges fit below 2^31 and FIRST is a multiple of 65536.
kj::Maybe<IdSpan> parseIdSpan(const std::string& text);

struct ClaimedRange {
  uint32_t slot = 0;  // 1 and up
  uint32_t first = 0;
  uint32_t count = kIdsPerRange;
};

struct IdRefusal {
  // idRangesExhausted; stateFull when no record was written.
  rpc::Reason reason;
  std::string detail;
};

// Other brokers are at the ranges that look free: try again in a moment.
struct IdsBusy {};

// What in the span belongs to somebody else, one sentence each: /etc/subuid and
// /etc/subgid, systemd's ranges (dynamic users, containers, foreign), accounts
// of passwd and group, and `serviceIds` of ours outside range 0.
struct IdSources {
  std::string subuid, subgid, passwd, group;
  static IdSources ofThisHost();  // a file that does not exist is empty
};
std::vector<std::string> idConflicts(const IdSpan& span, const IdSources& sources,
                                     const std::vector<uint32_t>& serviceIds);

class IdRegistry {
 public:
  // Makes `path` (0755, root's) where it is missing. Throws (kj) when it is a
  // link, another's, or writable by others. The caller has looked at
  // idConflicts.
  IdRegistry(const std::string& path, IdSpan span);

  // Takes a free or stale range, and calls `writeRecord` with it under its lock;
  // if that throws or writes none, the claim is undone. `recordPath` is absolute.
  // Looks at one claim after the other (two system calls each) until one is
  // free, which with a span far larger than the sandboxes is the first.
  kj::OneOf<ClaimedRange, IdRefusal, IdsBusy> claim(
      const std::string& recordPath, const std::function<void(const ClaimedRange&)>& writeRecord);

  // Calls `removeRecord` (errno, 0 = it is gone) and gives back what
  // `recordPath` has, under one lock; while the record is there the range stays
  // its. A slot that another record has by now stays. errno, 0 = given back (or
  // was not there). Null: another broker is at it; nothing was done, try again.
  kj::Maybe<int> release(uint32_t slot, const std::string& recordPath,
                         const std::function<int()>& removeRecord);

  // Removes the claims whose record does not exist; how many. Passes by those
  // that another broker is at (claim() looks at stale ones by itself).
  size_t unclaimStale();

  const IdSpan& span() const { return span_; }

 private:
  class SlotLock;
  // Null: another has it.
  kj::Maybe<SlotLock> tryLock(uint32_t slot) const;
  // Target of the claim; "" = free.
  std::string holderOf(uint32_t slot) const;
  // Nobody's, or of a record that is gone. Final only under the slot's lock.
  bool isFree(uint32_t slot) const;
  bool isOurs(uint32_t slot) const { return slot > 0 && slot < span_.ranges; }
  // Under the slot's lock. False: no record was written.
  bool take(const ClaimedRange& range, const std::string& recordPath,
            const std::function<void(const ClaimedRange&)>& writeRecord);

  IdSpan span_;
  kj::AutoCloseFd dir_;
  kj::AutoCloseFd locks_;  // kept: giving back must not fail for want of a descriptor
  uint32_t next_;          // where to look first: ranges are reused as late as possible
};

}  // namespace cordon::broker
