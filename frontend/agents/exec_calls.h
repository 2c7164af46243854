// All Exec and Run calls under way, by number: how gRPC's threads reach a call
// that lives on the loop thread and may have ended meanwhile.
#pragma once
#include <kj/async.h>
#include <kj/common.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>

#include "frontend/agents/backend.h"
#include "frontend/agents/exec_call.h"

namespace cordon::agents {

class ExecReactor;

class ExecCalls {
 public:
  // Lives and dies on any thread but is used on the loop; before it goes, all
  // calls must have ended (the gRPC servers are gone).
  ExecCalls(Backend& backend, size_t mostCalls) : backend_(backend), mostCalls_(mostCalls) {}
  KJ_DISALLOW_COPY(ExecCalls);

  // Any thread.
  uint64_t newNumber() { return ++lastNumber_; }
  void open(uint64_t number, ExecReactor& reactor, OpenRequest request);
  // Runs `action` on the loop, if the call still exists.
  template <typename Action>
  void post(uint64_t number, Action action) {
    backend_.loop.post([this, number, action = std::move(action)]() mutable {
      auto found = calls_.find(number);
      if (found != calls_.end()) action(*found->second);
    });
  }
  // Ends every call as cancelled, and refuses new ones.
  void shutdown();

  // The loop thread: removes a call that has finished.
  void remove(uint64_t number);

 private:
  Backend& backend_;
  const size_t mostCalls_;
  std::atomic<uint64_t> lastNumber_{0};
  bool shuttingDown_ = false;
  std::unordered_map<uint64_t, kj::Own<ExecCall>> calls_;
};

}  // namespace cordon::agents
