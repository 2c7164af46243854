#include "frontend/agents/exec_calls.h"

#include "frontend/agents/exec_reactor.h"

namespace cordon::agents {

void ExecCalls::open(uint64_t number, ExecReactor& reactor, OpenRequest request) {
  backend_.loop.post([this, number, &reactor, request = std::move(request)]() mutable {
    if (auto refused = refusal(request.uid)) return reactor.finish(*refused);
    ExecCall* call = nullptr;
    KJ_IF_MAYBE (exception, kj::runCatchingExceptions(
                                [&] { call = &add(number, reactor, std::move(request)); })) {
      backend_.log->error("a call could not begin: {}", exception->getDescription().cStr());
      return reactor.finish(fromException(*exception));
    }
    // From here on it is the call that finishes the reactor.
    guarded(*call, [](ExecCall& begun) { begun.begin(); });
  });
}

std::optional<CallError> ExecCalls::refusal(uint32_t uid) const {
  if (shuttingDown_) {
    return CallError{
        grpc::StatusCode::UNAVAILABLE, "SHUTTING_DOWN", "", "the service is shutting down", 0, 0};
  }
  auto tooMany = [](const char* message, size_t limit) {
    return CallError{grpc::StatusCode::RESOURCE_EXHAUSTED, "TOO_MANY_CALLS", "", message, limit, 0};
  };
  auto own = perUser_.find(uid);
  if (own != perUser_.end() && own->second >= limits_.callsPerUser) {
    return tooMany("too many calls of this user are under way", limits_.callsPerUser);
  }
  if (calls_.size() >= limits_.calls) {
    return tooMany("too many calls are under way", limits_.calls);
  }
  return std::nullopt;
}

ExecCall& ExecCalls::add(uint64_t number, ExecReactor& reactor, OpenRequest request) {
  auto uid = request.uid;
  auto made =
      kj::heap<ExecCall>(backend_, reactor, std::move(request), [this, number] { remove(number); });
  auto& call = *made;
  auto& count = perUser_[uid];
  calls_.emplace(number, kj::mv(made));
  ++count;
  return call;
}

void ExecCalls::guarded(ExecCall& call, kj::FunctionParam<void(ExecCall&)> step) {
  KJ_IF_MAYBE (exception, kj::runCatchingExceptions([&] { step(call); })) {
    call.failed(kj::mv(*exception));
  }
}

void ExecCalls::shutdown() {
  backend_.loop.post([this] {
    shuttingDown_ = true;
    for (auto& [number, call] : calls_) {
      guarded(*call, [](ExecCall& ending) { ending.cancelled(); });
    }
  });
}

void ExecCalls::remove(uint64_t number) {
  // Posted: the call itself is at work now.
  backend_.loop.post([this, number] {
    auto found = calls_.find(number);
    if (found == calls_.end()) return;
    auto count = perUser_.find(found->second->uid());
    if (--count->second == 0) perUser_.erase(count);
    calls_.erase(found);
  });
}

}  // namespace cordon::agents
