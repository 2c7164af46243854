// All Exec and Run calls under way, by number: how gRPC's threads reach a call
// that lives on the loop thread and may have ended meanwhile.
#pragma once
#include <kj/async.h>
#include <kj/common.h>
#include <kj/function.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>

#include "frontend/agents/backend.h"
#include "frontend/agents/exec_call.h"

namespace cordon::agents {

class ExecReactor;

class ExecCalls {
 public:
  // Lives and dies on any thread but is used on the loop; before it goes, all
  // calls must have ended (the gRPC servers are gone).
  struct Limits {
    size_t calls = 1024;        // in all
    size_t callsPerUser = 256;  // of one uid
  };

  ExecCalls(Backend& backend, Limits limits) : backend_(backend), limits_(limits) {}
  KJ_DISALLOW_COPY(ExecCalls);

  // Any thread.
  uint64_t newNumber() { return ++lastNumber_; }
  void open(uint64_t number, ExecReactor& reactor, OpenRequest request);
  // Runs `action` on the loop, if the call still exists.
  template <typename Action>
  void post(uint64_t number, Action action) {
    backend_.loop.post([this, number, action = std::move(action)]() mutable {
      auto found = calls_.find(number);
      if (found != calls_.end()) guarded(*found->second, action);
    });
  }
  // Ends every call as cancelled, and refuses new ones.
  void shutdown();

  // The loop thread: removes a call that has finished.
  void remove(uint64_t number);

 private:
  // Why one more call of this uid is refused.
  std::optional<CallError> refusal(uint32_t uid) const;
  ExecCall& add(uint64_t number, ExecReactor& reactor, OpenRequest request);
  // A call whose step threw ends, and no other.
  void guarded(ExecCall& call, kj::FunctionParam<void(ExecCall&)> step);

  Backend& backend_;
  const Limits limits_;
  std::atomic<uint64_t> lastNumber_{0};
  bool shuttingDown_ = false;
  std::unordered_map<uint64_t, kj::Own<ExecCall>> calls_;
  std::unordered_map<uint32_t, size_t> perUser_;  // of calls_; never 0
};

}  // namespace cordon::agents
