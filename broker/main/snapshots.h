// Taking a snapshot of a sandbox, and putting one into a new sandbox.
//
// Taking, in order:
//   1. room      number of snapshots and bytes of the owner and in all
//   2. freeze    the kernel stops the workload; 5 s at most
//   3. copy      by an unprivileged process in a jail of its own, in a cgroup
//                beside the workload's, into a file of the store; 30 s at most
//   4. thaw      as soon as that has ended, however it did
//   5. publish   record and archive reach the disk and get their name
// Whatever ends it half way (a failure, the sandbox's destruction, the broker's
// stop): thawed, the copier killed, the half-made snapshot removed. After a crash
// the next broker destroys the sandbox and empties the store of what is half made.
//
// Root reads the copier's numbers and nothing that it copied.
#pragma once
#include <kj/async.h>
#include <kj/one-of.h>

#include <string>
#include <vector>

#include "broker/main/failure.h"
#include "broker/main/sandbox.h"
#include "broker/main/services.h"
#include "broker/snapshots.h"

namespace cordon::broker {

class Snapshots final : private kj::TaskSet::ErrorHandler {
 public:
  Snapshots(Services& services, SnapshotStore& store);
  KJ_DISALLOW_COPY(Snapshots);

  struct Taken {
    SnapshotRecord record;
    std::string token;
  };
  // Goes on when the promise is dropped.
  kj::Promise<kj::OneOf<Taken, Failure>> take(Sandbox& sandbox);

  // Of a spec: NAME.TOKEN.
  kj::OneOf<SnapshotRecord, Failure> find(uint32_t owner, const std::string& id) const;
  // What `asked` leaves open, as the snapshot has it; or what doesn't go together.
  static kj::Maybe<Failure> complete(rpc::SandboxSpec::Builder asked,
                                     const SnapshotRecord& snapshot);
  static kj::Maybe<Failure> mismatch(const runtimes::Image& image, const SnapshotRecord& snapshot);
  // Into a sandbox whose agent runs and that nobody has used. Null: done.
  kj::Promise<kj::Maybe<Failure>> restore(Sandbox& sandbox, const SnapshotRecord& snapshot);

  std::vector<const SnapshotRecord*> of(uint32_t owner) const { return store_.of(owner); }
  kj::Maybe<Failure> remove(uint32_t owner, const std::string& name, const std::string& token);
  // Resolves when nothing is on its way to the disk or from it.
  kj::Promise<void> settle() { return tasks_.onEmpty(); }
  // Nobody will ever hear of it.
  void discard(const std::string& name);

 private:
  class Job;
  using Result = kj::OneOf<Taken, Failure>;

  kj::Maybe<Failure> admit(uint32_t owner) const;
  kj::Promise<kj::Maybe<Failure>> removeGroup(HelperGroup& group, unsigned attempts = 500);
  void taskFailed(kj::Exception&& exception) override;

  Services& services_;
  SnapshotStore& store_;
  uint32_t beingMade_ = 0;
  kj::TaskSet tasks_;
};

}  // namespace cordon::broker
