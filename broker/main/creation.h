// Making a sandbox, from a request to an agent that has said hello.
//
// In order:
//   1. spec       checked wholly; room for one more
//   2. probe      can the runtime work here? which seccomp profile?
//   3. image      resolved, its skeleton built at first use
//   4. record     name and token; id range claimed and record written: before
//                 the first effect, so that nothing can be forgotten. Other
//                 brokers at the ranges are waited for (10 s at most)
//   5. directory  for the bundle, root's alone
//   6. cgroups    made, limits written and read back; refused when one differs
//   7. control    socketpair; the agent's configuration, the workload's seccomp
//                 profile and a first stream are queued on it
//   8. runtime    starts vm-agent behind its boundary
//   9. agent      its greeting is readable on the first stream (10 s at most;
//                 one byte is peeked at, to tell data from EOF, and ignored)
//  10. restore    where the spec names a snapshot: its files are put into the
//                 sandbox by an unprivileged process, before anybody can use it
//  11. ready      recorded; time to live and idle limit armed
// Whatever fails: Destruction takes apart what there is, then the answer goes.
#pragma once
#include <kj/async.h>

#include <string>

#include "broker/main/destruction.h"
#include "broker/main/peer_scope.h"
#include "broker/main/registry.h"
#include "broker/main/services.h"
#include "broker/main/step_times.h"
#include "broker/snapshots.h"

namespace cordon::broker {

struct Created {
  kj::Own<Sandbox> sandbox;
  std::string token;
};

// What the runtime is asked for, but for the control socket. From the same words
// its mount plan is told.
runtimes::CreateRequest requestOf(Sandbox& sandbox);

class Creation final : private kj::TaskSet::ErrorHandler {
 public:
  Creation(Services& services, Registry& registry, Destruction& destruction);
  KJ_DISALLOW_COPY(Creation);

  // Goes on when the promise is dropped. When `peer` has disconnected by the
  // time it is ready, nobody knows of it: it is destroyed.
  kj::Promise<kj::OneOf<Created, Failure>> create(uint32_t owner, rpc::SandboxSpec::Reader asked,
                                                  kj::Own<PeerScope> peer, bool whileConnected);

  // No new ones; those being made fail at their next step. Resolves when none
  // is being made any more.
  kj::Promise<void> stop();

 private:
  struct Job;
  using Result = kj::Maybe<Failure>;
  using Step = kj::Promise<Result> (Creation::*)(Job&);

  kj::OneOf<SnapshotRecord, Failure> findSnapshot(uint32_t owner, const std::string& id) const;
  kj::Promise<kj::OneOf<Created, Failure>> run(kj::Own<Job> job);
  kj::Promise<Result> runFrom(Job& job, size_t step);
  kj::Promise<Result> probe(Job& job);
  Result chooseProfile(Sandbox& sandbox);
  kj::Promise<Result> resolveImage(Job& job);
  kj::Promise<Result> record(Job& job);
  kj::Promise<Result> makeDirectory(Job& job);
  kj::Promise<Result> makeCgroups(Job& job);
  kj::Promise<Result> queueControl(Job& job);
  kj::Promise<Result> startRuntime(Job& job);
  kj::Promise<Result> awaitAgent(Job& job);
  kj::Promise<Result> restore(Job& job);
  kj::Promise<Result> becomeReady(Job& job);
  void armExpiry(Sandbox& sandbox);
  kj::Promise<void> expire(Sandbox& sandbox);
  void taskFailed(kj::Exception&& exception) override;

  Services& services_;
  Registry& registry_;
  Destruction& destruction_;
  bool stopping_ = false;
  kj::PromiseFulfillerPair<void> stop_ = kj::newPromiseAndFulfiller<void>();
  kj::ForkedPromise<void> stops_ = stop_.promise.fork();
  kj::TaskSet tasks_;
};

}  // namespace cordon::broker
