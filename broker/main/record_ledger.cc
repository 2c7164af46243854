#include "broker/main/record_ledger.h"

#include <errno.h>
#include <kj/debug.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <string>

#include "broker/ids.h"

namespace cordon::broker {

namespace {
// When to try again, and until when.
class Patience {
 public:
  explicit Patience(kj::Timer& timer) : timer_(timer), until_(timer.now() + kIdsWait) {}
  bool isOver() const { return timer_.now() >= until_; }
  kj::Promise<void> pause() {
    auto now = pause_;
    pause_ = kj::min(pause_ * 2, kLongestPause);
    return timer_.afterDelay(now);
  }

 private:
  static constexpr auto kLongestPause = 16 * kj::MILLISECONDS;
  kj::Timer& timer_;
  kj::TimePoint until_;
  kj::Duration pause_ = 1 * kj::MILLISECONDS;
};

class RecordLedger final : public Ledger {
 public:
  RecordLedger(const std::string& directory, kj::Maybe<IdRegistry> ids, kj::Timer& timer,
               TurnClock& clock)
      : records_(directory), ids_(kj::mv(ids)), timer_(timer), clock_(clock) {}

  kj::Promise<kj::Maybe<Failure>> open(SandboxRecord& record, bool wantIds) override {
    if (!wantIds) return write(record);
    KJ_IF_MAYBE (ids, ids_) return claim(*ids, record, Patience(timer_));
    return kj::Maybe<Failure>(
        failure(rpc::Reason::RUNTIME_UNAVAILABLE, "only root has id ranges to give"));
  }

  kj::Maybe<Failure> update(const SandboxRecord& record) override { return write(record); }

  kj::Promise<std::vector<LeftOver>> close(const SandboxRecord& record) override {
    KJ_IF_MAYBE (ids, ids_) {
      if (record.idCount > 0) return giveBack(*ids, record, Patience(timer_));
      // A damaged record does not say which range it had; a claim on a record
      // that is gone is stale.
      auto left = remove(record);
      ids->unclaimStale();
      return left;
    }
    return remove(record);
  }

  std::vector<Records::Found> findings() override {
    std::vector<std::string> strange;
    auto found = records_.list(&strange);
    for (auto& name : strange) {
      spdlog::warn("the directory of records holds what is no record: {}", name);
    }
    KJ_IF_MAYBE (ids, ids_) {
      ids->unclaimStale();
    }
    return found;
  }

 private:
  kj::Promise<kj::Maybe<Failure>> claim(IdRegistry& ids, SandboxRecord& record, Patience patience) {
    auto turn = clock_.turn("id range: claim");
    kj::Maybe<Failure> full;
    auto claimed = ids.claim(records_.pathOf(record.name), [&](const ClaimedRange& range) {
      record.idSlot = range.slot;
      record.idFirst = range.first;
      record.idCount = range.count;
      full = write(record);
    });
    if (claimed.is<ClaimedRange>()) return kj::Maybe<Failure>(nullptr);
    record.idSlot = record.idFirst = record.idCount = 0;
    if (full != nullptr) return kj::mv(full);
    if (claimed.is<IdRefusal>()) {
      auto& why = claimed.get<IdRefusal>();
      return kj::Maybe<Failure>(failure(why.reason, why.detail));
    }
    if (patience.isOver()) {
      return kj::Maybe<Failure>(failure(
          rpc::Reason::HOST_LIMIT,
          "the id registry is locked: other brokers of this host have held every id range that "
          "looks free for 10 s; one of them may be stopped"));
    }
    auto pause = patience.pause();
    return pause.then([this, &ids, &record, patience]() { return claim(ids, record, patience); });
  }

  kj::Promise<std::vector<LeftOver>> giveBack(IdRegistry& ids, const SandboxRecord& record,
                                              Patience patience) {
    auto turn = clock_.turn("id range: release");
    std::vector<LeftOver> left;
    auto range = [&record](int error) {
      return LeftOver{"id-range", std::to_string(record.idFirst), error};
    };
    auto released = ids.release(record.idSlot, records_.pathOf(record.name), [&]() {
      left = remove(record);
      return left.empty() ? 0 : left.front().error;
    });
    KJ_IF_MAYBE (error, released) {
      if (*error != 0) left.push_back(range(*error));
      return kj::mv(left);
    }
    if (patience.isOver()) return std::vector<LeftOver>{range(ETIMEDOUT)};
    auto pause = patience.pause();
    return pause.then(
        [this, &ids, &record, patience]() { return giveBack(ids, record, patience); });
  }

  std::vector<LeftOver> remove(const SandboxRecord& record) {
    int error = records_.remove(record.name);
    if (error == 0) return {};
    return {{"record", record.name, error}};
  }

  kj::Maybe<Failure> write(const SandboxRecord& record) {
    int error = records_.write(record);
    if (error == 0) return nullptr;
    auto full = failure(rpc::Reason::STATE_FULL,
                        "the disk of the service's state is full: no record, no sandbox", error);
    full.subject = "record";
    return kj::Maybe<Failure>(kj::mv(full));
  }

  Records records_;
  kj::Maybe<IdRegistry> ids_;
  kj::Timer& timer_;
  TurnClock& clock_;
};

void checkSpan(const Options& options) {
  auto conflicts = idConflicts(options.ids, IdSources::ofThisHost(), {options.agentsUid});
  for (auto& conflict : conflicts) spdlog::critical("--id-span: {}", conflict);
  KJ_REQUIRE(conflicts.empty(), "the span of ids for sandboxes belongs to somebody else");
}
}  // namespace

kj::Own<Ledger> openLedger(const Options& options, const StateDirectory& state, kj::Timer& timer,
                           TurnClock& clock) {
  kj::Maybe<IdRegistry> ids;
  if (geteuid() == 0) {
    checkSpan(options);
    ids.emplace(options.idRegistry, options.ids);
  }
  return kj::heap<RecordLedger>(state.records(), kj::mv(ids), timer, clock);
}

}  // namespace cordon::broker
