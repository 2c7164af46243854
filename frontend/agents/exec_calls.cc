#include "frontend/agents/exec_calls.h"

#include "frontend/agents/exec_reactor.h"

namespace cordon::agents {

void ExecCalls::open(uint64_t number, ExecReactor& reactor, OpenRequest request) {
  backend_.loop.post([this, number, &reactor, request = std::move(request)]() mutable {
    if (shuttingDown_) {
      reactor.finish(CallError{grpc::StatusCode::UNAVAILABLE, "SHUTTING_DOWN", "",
                               "the service is shutting down", 0, 0});
      return;
    }
    if (calls_.size() >= mostCalls_) {
      reactor.finish(CallError{grpc::StatusCode::RESOURCE_EXHAUSTED, "TOO_MANY_CALLS", "",
                               "too many calls are under way", mostCalls_, 0});
      return;
    }
    auto call = kj::heap<ExecCall>(backend_, reactor, std::move(request),
                                   [this, number] { remove(number); });
    auto& started = *call;
    calls_.emplace(number, kj::mv(call));
    started.begin();
  });
}

void ExecCalls::shutdown() {
  backend_.loop.post([this] {
    shuttingDown_ = true;
    for (auto& [number, call] : calls_) call->cancelled();
  });
}

void ExecCalls::remove(uint64_t number) {
  // Posted: the call itself is at work now.
  backend_.loop.post([this, number] { calls_.erase(number); });
}

}  // namespace cordon::agents
