// The execs of one sandbox, as the broker sees them: a leaf, its counters, its
// CPU time, and their end. What an exec runs, says and returns is between the
// frontend and vm-agent.
//
// In order, for one exec:
//   begin     leaf taken, or made if none is ready (mkdir in each hierarchy) ->
//             counters read -> leaf's fds to the agent (kExec) -> CPU watch armed,
//             for as long as the leaf is there
//   kill      leaf's killPass every ms until it is empty
//   end       counters read -> kForget to the agent
//   tidy      after the answer: empty leaves removed, those that still hold a
//             process kept as left over, and the next exec's leaf made
#pragma once
#include <kj/async.h>
#include <kj/function.h>
#include <kj/timer.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "broker/cgroups.h"
#include "broker/limits.h"
#include "broker/main/control_channel.h"
#include "broker/main/failure.h"
#include "broker/main/leaf_budget.h"
#include "broker/main/peer_scope.h"

namespace cordon::broker {

class Execs final : private kj::TaskSet::ErrorHandler {
 public:
  static constexpr size_t kMaxLive = 64;
  // Leaves of ended execs that still hold a process.
  static constexpr size_t kMaxLeftOver = 64;

  // `cgroups` is null on `host`: no counters, no CPU watch and no kill there.
  // All references outlive this, or stop() comes first.
  Execs(kj::Timer& timer, TurnClock& clock, std::string sandbox, SandboxCgroups* cgroups,
        ControlChannel& control, const ResolvedLimits& limits, LeafBudget& budget);
  // For a sandbox of one exec: no leaf is made in advance.
  void expectOne() { wantsSpare_ = false; }
  ~Execs() noexcept(false) = default;
  KJ_DISALLOW_COPY(Execs);

  struct Begun {
    uint32_t number = 0;
    Counters before;
    uint32_t sharedWith = 0;
  };
  // `cpuTimeMs`: 0 = the sandbox's. That it isn't wider is the caller's to see to
  // (beginExec in sandbox_port.h).
  kj::OneOf<Begun, Failure> begin(uint64_t cpuTimeMs, PeerScope& peer);

  kj::OneOf<Counters, Failure> counters(uint32_t number);

  struct Ended {
    Counters after;
    uint32_t sharedWith = 0;
    rpc::ExecEnd endedBy = rpc::ExecEnd::RUNNING;
  };
  kj::OneOf<Ended, Failure> end(uint32_t number);

  // Before end(): lets what was killed be gone, so that it isn't taken for left
  // over. Until a kill of ours is through (a second at most); else a few ms when
  // a process is still in the leaf, which the agent may have killed.
  kj::Promise<void> settle(uint32_t number);

  // Resolves when the leaf is empty, or after a second with `unavailable`: the
  // killing goes on then.
  kj::Promise<kj::Maybe<Failure>> kill(uint32_t number);

  // The peer's connection ended: its execs are killed and ended.
  void dropPeer(const PeerScope& peer);

  // No timer and no fd of a leaf from here on.
  void stop();

  uint32_t running() const { return static_cast<uint32_t>(live_.size()); }
  uint32_t total() const { return last_; }
  // When the last one ended (or this was made).
  kj::TimePoint idleSince() const { return idleSince_; }
  // Called when running() goes to or leaves zero.
  void onIdleChange(kj::Function<void()> callback) { idleChange_ = kj::mv(callback); }

 private:
  // A kill in progress outlives the exec's end, so it shares the leaf.
  struct Leaf final : public kj::Refcounted {
    Leaf(uint32_t number, kj::Own<ExecLeaf> made, LeafBudget& all)
        : slot(number), cgroup(kj::mv(made)), budget(all) {
      ++budget.used;
    }
    ~Leaf() noexcept(false) { --budget.used; }
    uint32_t slot;  // of its name, exec-N
    kj::Own<ExecLeaf> cgroup;
    LeafBudget& budget;
    uint64_t cpuEndUs = 0;                  // usage at which what is in it is killed
    kj::Maybe<kj::Promise<void>> cpuWatch;  // null: no exec has had it yet
    bool removed = false;
    // False while a process is in it.
    bool remove() { return removed = removed || cgroup->remove(); }
  };
  struct Exec {
    uint32_t number = 0;
    kj::Maybe<kj::Own<Leaf>> leaf;
    kj::Own<PeerScope> peer;
    uint32_t others = 0;
    rpc::ExecEnd endedBy = rpc::ExecEnd::RUNNING;
    kj::Maybe<kj::ForkedPromise<void>> killing;
  };

  Exec* find(uint32_t number);
  Counters read(Exec& exec);
  uint32_t freeSlot() const;
  kj::Own<Leaf> makeLeaf();
  kj::Own<Leaf> takeLeaf();
  void makeSpare();
  bool recycleALeaf();
  void giveUpLeaf(Exec& exec);
  void tellForgotten();
  uint32_t sweepLeftOvers();
  void tidyLater();
  kj::Promise<void> settleWithin(uint32_t number, uint32_t passes);
  kj::Promise<void> watchCpu(uint32_t number, Leaf& leaf);
  kj::ForkedPromise<void>& startKill(Exec& exec, rpc::ExecEnd endedBy);
  kj::Promise<void> killUntilEmpty(uint32_t number, Leaf& leaf, uint32_t pass);
  void taskFailed(kj::Exception&& exception) override;

  kj::Timer& timer_;
  TurnClock& clock_;
  std::string sandbox_;
  SandboxCgroups* cgroups_;
  ControlChannel& control_;
  ResolvedLimits limits_;
  LeafBudget& budget_;
  uint64_t cpus_;  // how many may run at once at most, for the pace of the watch
  uint32_t last_ = 0;
  kj::TimePoint idleSince_;
  kj::Function<void()> idleChange_ = []() {};
  std::vector<kj::Own<Leaf>> leftOver_;  // of ended execs, not removed yet
  kj::Maybe<kj::Own<Leaf>> spare_;       // the next exec's
  bool wantsSpare_ = true;
  bool tidying_ = false;
  std::vector<uint32_t> forgotten_;  // ended, and the agent not told yet
  std::map<uint32_t, kj::Own<Exec>> live_;
  kj::Own<kj::TaskSet> tasks_;
};

}  // namespace cordon::broker
