#include "broker/main/execs.h"

#include <kj/debug.h>
#include <sched.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>

namespace cordon::broker {

namespace {
constexpr kj::Duration kShortestWatch = 5 * kj::MILLISECONDS;
constexpr kj::Duration kKillAnswer = 1 * kj::SECONDS;
constexpr kj::Duration kAfterFault = 100 * kj::MILLISECONDS;
constexpr uint32_t kSettlePasses = 4;

Failure noSuchExec() {
  return failure(rpc::Reason::NO_SUCH_EXEC, "no exec of that number runs");
}

uint64_t cpusAtOnce(uint32_t cpuMillis) {
  long online = sysconf(_SC_NPROCESSORS_ONLN);
  uint64_t host = online > 0 ? static_cast<uint64_t>(online) : 1;
  uint64_t rate = (static_cast<uint64_t>(cpuMillis) + 999) / 1000;
  return std::max<uint64_t>(1, rate == 0 ? host : std::min(host, rate));
}

}  // namespace

Execs::Execs(kj::Timer& timer, TurnClock& clock, std::string sandbox, SandboxCgroups* cgroups,
             ControlChannel& control, const ResolvedLimits& limits, LeafBudget& budget)
    : timer_(timer),
      clock_(clock),
      sandbox_(std::move(sandbox)),
      cgroups_(cgroups),
      control_(control),
      limits_(limits),
      budget_(budget),
      cpus_(cpusAtOnce(limits.cpuMillis)),
      idleSince_(timer.now()),
      tasks_(kj::heap<kj::TaskSet>(static_cast<kj::TaskSet::ErrorHandler&>(*this))) {}

Execs::Exec* Execs::find(uint32_t number) {
  auto it = live_.find(number);
  return it == live_.end() ? nullptr : it->second.get();
}

Counters Execs::read(Exec& exec) {
  Counters result;
  KJ_IF_MAYBE (leaf, exec.leaf) {
    result = (*leaf)->cgroup->read();
    auto whole = cgroups_->read();
    result.insert(result.end(), std::make_move_iterator(whole.begin()),
                  std::make_move_iterator(whole.end()));
  }
  return result;
}

// Gives up the leaves that have emptied; how many still hold a process.
uint32_t Execs::sweepLeftOvers() {
  uint32_t populated = 0;
  std::vector<kj::Own<Leaf>> kept;
  for (auto& leaf : leftOver_) {
    bool full = leaf->cgroup->populated();
    if (full) ++populated;
    if (full || !leaf->remove()) kept.push_back(kj::mv(leaf));
  }
  leftOver_ = kj::mv(kept);
  return populated;
}

// A free name for a leaf, used again and again: the kernel keeps every name
// that a directory ever had, and at 10 us each the removal of a sandbox after
// 1,000 execs blocked for 30 ms.
uint32_t Execs::freeSlot() const {
  std::vector<bool> used(kMaxLive + kMaxLeftOver + 2);
  auto mark = [&](const Leaf& leaf) {
    if (leaf.slot < used.size()) used[leaf.slot] = true;
  };
  for (auto& [number, exec] : live_) {
    KJ_IF_MAYBE (leaf, exec->leaf) mark(**leaf);
  }
  for (auto& leaf : leftOver_) mark(*leaf);
  auto free = std::find(used.begin() + 1, used.end(), false);
  KJ_ASSERT(free != used.end(), "more leaves than there may be");
  return static_cast<uint32_t>(free - used.begin());
}

kj::Own<Execs::Leaf> Execs::makeLeaf() {
  uint32_t slot = freeSlot();
  return kj::refcounted<Leaf>(slot, cgroups_->createExec(slot), budget_);
}

kj::Own<Execs::Leaf> Execs::takeLeaf() {
  KJ_IF_MAYBE (spare, spare_) {
    auto leaf = kj::mv(*spare);
    spare_ = nullptr;
    return leaf;
  }
  return makeLeaf();
}

// What nobody waits for, after the answer has gone out: removing the leaves of
// ended execs and making the next exec's, each of which costs more than all the
// rest of an exec here.
void Execs::tidyLater() {
  if (tidying_ || cgroups_ == nullptr) return;
  tidying_ = true;
  tasks_->add(kj::evalLast([this]() {
    // Where the frontend was woken on this CPU, it goes first.
    sched_yield();
    auto turn = clock_.turn("exec: tidy");
    tidying_ = false;
    tellForgotten();
    makeSpare();
    sweepLeftOvers();
  }));
}

void Execs::makeSpare() {
  if (spare_ != nullptr || !wantsSpare_) return;
  if (cgroups_->memoryTight()) {
    recycleALeaf();
    return;
  }
  // Only while there is plenty: none is made for nobody that somebody needs.
  if (budget_.used < budget_.most / 2) spare_ = makeLeaf();
}

bool Execs::recycleALeaf() {
  for (auto it = leftOver_.begin(); it != leftOver_.end(); ++it) {
    auto& leaf = **it;
    if (leaf.isShared() || leaf.removed || leaf.cgroup->populated()) continue;
    leaf.cpuWatch = nullptr;
    leaf.cgroup->renew();
    spare_ = kj::mv(*it);
    leftOver_.erase(it);
    return true;
  }
  return false;
}

void Execs::giveUpLeaf(Exec& exec) {
  KJ_IF_MAYBE (leaf, exec.leaf) leftOver_.push_back(kj::mv(*leaf));
  exec.leaf = nullptr;
}

// The agent keeps what it was told of for good, so it is told until it hears.
void Execs::tellForgotten() {
  while (!forgotten_.empty()) {
    if (control_.sendForget(forgotten_.back()) == ipc::SendResult::kWouldBlock) return;
    forgotten_.pop_back();
  }
}

kj::OneOf<Execs::Begun, Failure> Execs::begin(uint64_t cpuTimeMs, PeerScope& peer) {
  uint32_t leftOver = sweepLeftOvers();
  tellForgotten();
  if (live_.size() >= kMaxLive) {
    auto refused = failure(rpc::Reason::TOO_MANY_EXECS, "too many execs run in this sandbox");
    refused.limit = kMaxLive;
    return refused;
  }
  if (leftOver_.size() >= kMaxLeftOver) {
    auto refused =
        failure(rpc::Reason::TOO_MANY_EXECS, "earlier execs left too many processes running");
    refused.limit = kMaxLeftOver;
    return refused;
  }
  // Joining a cgroup isn't a fork: the kernel doesn't look at the limit then.
  if (cgroups_ != nullptr && live_.size() >= limits_.pids) {
    auto refused =
        failure(rpc::Reason::TOO_MANY_EXECS, "as many execs run as it may have processes");
    refused.limit = limits_.pids;
    return refused;
  }
  if (cgroups_ != nullptr && spare_ == nullptr && cgroups_->memoryTight() && !recycleALeaf()) {
    return failure(rpc::Reason::TOO_MANY_EXECS,
                   "the sandbox's memory is full: no further exec beside those that run");
  }
  if (cgroups_ != nullptr && spare_ == nullptr && budget_.used >= budget_.most) {
    auto refused = failure(rpc::Reason::HOST_LIMIT, "too many execs run in all sandboxes together");
    refused.limit = budget_.most;
    return refused;
  }

  auto exec = kj::heap<Exec>();
  exec->number = ++last_;
  exec->peer = kj::addRef(peer);
  exec->others = static_cast<uint32_t>(live_.size()) + leftOver;
  std::vector<int> fds;
  if (cgroups_ != nullptr) {
    exec->leaf = takeLeaf();
    fds = KJ_ASSERT_NONNULL(exec->leaf)->cgroup->agentFds();
  }
  // Its directories outlive it else, and the next exec gets their name.
  Exec& made = *exec;
  KJ_ON_SCOPE_FAILURE({
    giveUpLeaf(made);
    live_.erase(made.number);
  });
  Begun begun{exec->number, read(*exec), exec->others};

  if (control_.sendExec(exec->number, fds) != ipc::SendResult::kSent) {
    giveUpLeaf(*exec);
    sweepLeftOvers();
    return failure(rpc::Reason::AGENT_UNRESPONSIVE, "the sandbox's agent takes no new exec");
  }

  for (auto& [number, other] : live_) ++other->others;
  live_[begun.number] = kj::mv(exec);
  KJ_IF_MAYBE (own, made.leaf) {
    auto& leaf = **own;
    // From where it stands: one that is used again has been counted on.
    leaf.cpuEndUs =
        leaf.cgroup->cpuUsageUs() + (cpuTimeMs != 0 ? cpuTimeMs : limits_.cpuTimeMs) * 1000;
    leaf.cpuWatch = watchCpu(made.number, leaf).eagerlyEvaluate([this](kj::Exception&& e) {
      taskFailed(kj::mv(e));
    });
  }
  if (live_.size() == 1) idleChange_();
  // While there is memory for it.
  if (spare_ == nullptr) tidyLater();
  return begun;
}

// As long as the leaf is there, so that what outlives its exec has the exec's CPU
// time still. Asks again when the limit could be reached at the earliest: an exec
// that doesn't use the CPU isn't asked for.
kj::Promise<void> Execs::watchCpu(uint32_t number, Leaf& leaf) {
  auto turn = clock_.turn("exec: watch CPU time");
  uint64_t used = leaf.cgroup->cpuUsageUs();
  if (used < leaf.cpuEndUs) {
    auto earliest = static_cast<int64_t>((leaf.cpuEndUs - used) / cpus_) * kj::MICROSECONDS;
    return timer_.afterDelay(kj::max(kShortestWatch, earliest)).then([this, number, &leaf]() {
      return watchCpu(number, leaf);
    });
  }
  spdlog::info("{}: exec {} reached its limit of CPU time: killed", sandbox_, number);
  Exec* exec = find(number);
  if (exec == nullptr) return killUntilEmpty(number, leaf, 0);
  startKill(*exec, rpc::ExecEnd::CPU_TIME);
  return kj::READY_NOW;
}

kj::ForkedPromise<void>& Execs::startKill(Exec& exec, rpc::ExecEnd endedBy) {
  if (exec.endedBy == rpc::ExecEnd::RUNNING) exec.endedBy = endedBy;
  KJ_IF_MAYBE (killing, exec.killing) {
    return *killing;
  }
  auto& leaf = *KJ_ASSERT_NONNULL(exec.leaf);
  auto& killing =
      exec.killing.emplace(killUntilEmpty(exec.number, leaf, 0).attach(kj::addRef(leaf)).fork());
  // A fork without a branch does nothing.
  tasks_->add(killing.addBranch());
  return killing;
}

kj::Promise<void> Execs::killUntilEmpty(uint32_t number, Leaf& leaf, uint32_t pass) {
  auto turn = clock_.turn("exec: kill");
  bool dead = false;
  // A kill is not given up for want of a descriptor or of memory.
  auto fault = kj::runCatchingExceptions([&]() { dead = leaf.removed || leaf.cgroup->killPass(); });
  if (dead) return kj::READY_NOW;
  if (pass == 500) spdlog::warn("{}: exec {} does not die", sandbox_, number);
  // A process in an uninterruptible call dies when that ends.
  auto pause = (pass < 500 ? 1 : 50) * kj::MILLISECONDS;
  KJ_IF_MAYBE (why, fault) {
    if (pass == 0) {
      spdlog::error("{}: exec {}: kill: {}; it is tried again", sandbox_, number,
                    why->getDescription().cStr());
    }
    pause = kAfterFault;
  }
  return timer_.afterDelay(pause).then(
      [this, number, &leaf, pass]() { return killUntilEmpty(number, leaf, pass + 1); });
}

kj::OneOf<Counters, Failure> Execs::counters(uint32_t number) {
  Exec* exec = find(number);
  if (exec == nullptr) return noSuchExec();
  return read(*exec);
}

kj::Promise<void> Execs::settle(uint32_t number) {
  Exec* exec = find(number);
  if (exec == nullptr) return kj::READY_NOW;
  KJ_IF_MAYBE (killing, exec->killing) {
    return killing->addBranch().exclusiveJoin(timer_.afterDelay(kKillAnswer));
  }
  return settleWithin(number, kSettlePasses);
}

kj::Promise<void> Execs::settleWithin(uint32_t number, uint32_t passes) {
  Exec* exec = find(number);
  if (exec == nullptr || exec->leaf == nullptr || passes == 0) return kj::READY_NOW;
  if (!KJ_ASSERT_NONNULL(exec->leaf)->cgroup->populated()) return kj::READY_NOW;
  return timer_.afterDelay(1 * kj::MILLISECONDS).then([this, number, passes]() {
    return settleWithin(number, passes - 1);
  });
}

kj::OneOf<Execs::Ended, Failure> Execs::end(uint32_t number) {
  Exec* exec = find(number);
  if (exec == nullptr) return noSuchExec();
  Ended ended;
  ended.after = read(*exec);
  ended.sharedWith = exec->others;
  ended.endedBy = exec->endedBy;

  exec->killing = nullptr;
  giveUpLeaf(*exec);
  live_.erase(number);
  // The agent has said `exited`, or is gone: it needs the leaf's fds no more.
  forgotten_.push_back(number);
  tellForgotten();
  idleSince_ = timer_.now();
  if (live_.empty()) idleChange_();
  tidyLater();
  return ended;
}

kj::Promise<kj::Maybe<Failure>> Execs::kill(uint32_t number) {
  Exec* exec = find(number);
  if (exec == nullptr) return kj::Maybe<Failure>(noSuchExec());
  if (exec->leaf == nullptr) {
    return kj::Maybe<Failure>(
        failure(rpc::Reason::NONE, "this runtime has no cgroups: the agent kills its execs"));
  }
  auto killed = startKill(*exec, rpc::ExecEnd::KILLED).addBranch().then([]() {
    return kj::Maybe<Failure>();
  });
  return killed.exclusiveJoin(timer_.afterDelay(kKillAnswer).then([]() {
    return kj::Maybe<Failure>(
        failure(rpc::Reason::AGENT_UNRESPONSIVE, "killed, but not all processes are gone yet"));
  }));
}

void Execs::dropPeer(const PeerScope& peer) {
  std::vector<uint32_t> orphans;
  for (auto& [number, exec] : live_) {
    if (exec->peer.get() == &peer) orphans.push_back(number);
  }
  for (uint32_t number : orphans) {
    spdlog::info("{}: exec {} is ended, its frontend disconnected", sandbox_, number);
    auto& exec = *live_[number];
    // The agent sees the end of the stream and kills, too; where there are no
    // cgroups that is all there is.
    kj::Promise<void> killed = exec.leaf == nullptr
                                   ? kj::Promise<void>(kj::READY_NOW)
                                   : startKill(exec, rpc::ExecEnd::KILLED).addBranch();
    tasks_->add(killed.then([this, number]() {
      auto turn = clock_.turn("exec: end of an orphan");
      end(number);
    }));
  }
}

void Execs::stop() {
  tasks_ = kj::heap<kj::TaskSet>(static_cast<kj::TaskSet::ErrorHandler&>(*this));
  idleChange_ = []() {};
  // A kill that somebody still waits for shares the leaf and ends at its next pass.
  auto leave = [](Leaf& leaf) {
    leaf.removed = true;
    leaf.cpuWatch = nullptr;
  };
  for (auto& [number, exec] : live_) {
    KJ_IF_MAYBE (leaf, exec->leaf) leave(**leaf);
  }
  for (auto& leaf : leftOver_) leave(*leaf);
  spare_ = nullptr;  // its directories go with the sandbox's
  live_.clear();
  leftOver_.clear();
}

void Execs::taskFailed(kj::Exception&& exception) {
  fault("exec", exception);
}

}  // namespace cordon::broker
