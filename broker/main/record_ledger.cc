#include "broker/main/record_ledger.h"

#include <errno.h>
#include <kj/debug.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <string>

#include "broker/ids.h"

namespace cordon::broker {

namespace {
class RecordLedger final : public Ledger {
 public:
  RecordLedger(const std::string& directory, kj::Maybe<IdRegistry> ids)
      : records_(directory), ids_(kj::mv(ids)) {}

  kj::Maybe<Failure> open(SandboxRecord& record, bool wantIds) override {
    if (!wantIds) return write(record);
    kj::Maybe<Failure> full;
    KJ_IF_MAYBE (ids, ids_) {
      auto claimed = ids->claim(records_.pathOf(record.name), [&](const ClaimedRange& range) {
        record.idSlot = range.slot;
        record.idFirst = range.first;
        record.idCount = range.count;
        full = write(record);
      });
      if (claimed.is<ClaimedRange>()) return nullptr;
      record.idSlot = record.idFirst = record.idCount = 0;
      if (full != nullptr) return full;
      auto& why = claimed.get<IdRefusal>();
      return failure(why.reason, why.detail);
    }
    return failure(rpc::Reason::RUNTIME_UNAVAILABLE, "only root has id ranges to give");
  }

  kj::Maybe<Failure> update(const SandboxRecord& record) override { return write(record); }

  std::vector<LeftOver> close(const SandboxRecord& record) override {
    std::vector<LeftOver> left;
    auto removeRecord = [&]() {
      int error = records_.remove(record.name);
      if (error != 0) left.push_back({"record", record.name, error});
      return error;
    };
    KJ_IF_MAYBE (ids, ids_) {
      if (record.idCount > 0) {
        int error = ids->release(record.idSlot, records_.pathOf(record.name), removeRecord);
        if (error != 0) left.push_back({"id-range", std::to_string(record.idFirst), error});
        return left;
      }
      // A damaged record does not say which range it had; a claim on a record
      // that is gone is stale.
      removeRecord();
      ids->unclaimStale();
      return left;
    }
    removeRecord();
    return left;
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
};

void checkSpan(const Options& options) {
  auto conflicts = idConflicts(options.ids, IdSources::ofThisHost(), {options.agentsUid});
  for (auto& conflict : conflicts) spdlog::critical("--id-span: {}", conflict);
  KJ_REQUIRE(conflicts.empty(), "the span of ids for sandboxes belongs to somebody else");
}
}  // namespace

kj::Own<Ledger> openLedger(const Options& options, const StateDirectory& state) {
  kj::Maybe<IdRegistry> ids;
  if (geteuid() == 0) {
    checkSpan(options);
    ids.emplace(options.idRegistry, options.ids);
  }
  return kj::heap<RecordLedger>(state.records(), kj::mv(ids));
}

}  // namespace cordon::broker
