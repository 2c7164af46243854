// The end of a call: everything is given back, then the client is told.
#include <kj/debug.h>

#include "frontend/agents/exec_call.h"
#include "frontend/agents/exec_messages.h"
#include "frontend/agents/exec_reactor.h"

namespace cordon::agents {
namespace {

// The stream of a dead sandbox ends a moment before its init can be waited for.
constexpr auto kLossSettles = 50 * kj::MILLISECONDS;
// A client that takes nothing for so long has its call ended: after the
// program's own end, and when we stopped it.
constexpr auto kClientStall = 60 * kj::SECONDS;
constexpr auto kClientStallKilled = 5 * kj::SECONDS;

}  // namespace

void ExecCall::windDown() {
  if (phase_ != Phase::kOpening && phase_ != Phase::kRunning) return;
  phase_ = Phase::kWindingDown;
  if (startedLate_ && !streamLost_ && !error_) error_ = lateStart();
  endedAt_ = releasedAt_ = std::chrono::steady_clock::now();
  stdin_.clear();
  KJ_IF_MAYBE (io, io_) (*io)->close();
  auto settled = streamLost_ && !killed_ ? backend_.loop.timer().afterDelay(kLossSettles)
                                         : kj::Promise<void>(kj::READY_NOW);
  // Before the end of the exec at the broker, so that nothing is counted to it
  // that its processes were refused while they were being killed.
  auto counted = stopListener();
  tasks_.add(settled.then([this] { return endAtBroker(); })
                 .then([counted = kj::mv(counted)]() mutable { return kj::mv(counted); })
                 .then([this] { complete(); },
                       [this](kj::Exception&& exception) {
                         if (!error_) error_ = fromException(exception);
                         complete();
                       }));
  // Last: were there no memory for it, the way to the end would be taken already.
  if (started_) sendStarted();
}

// Kill if need be, end, and destroy. Only then: while the end settles, the
// sandbox's counters and its init must still be there to be read.
kj::Promise<void> ExecCall::endAtBroker() {
  return endExec()
      .catch_([this](kj::Exception&& exception) {
        if (!error_) error_ = fromException(exception);
      })
      .then([this]() { return owned_ ? destroySandbox() : kj::Promise<void>(kj::READY_NOW); });
}

kj::Promise<void> ExecCall::endExec() {
  if (exec_ == 0) return kj::READY_NOW;
  if (io_ != nullptr && !exit_ && !failure_) {
    auto request = sandbox_.killExecRequest();
    request.setExec(exec_);
    tasks_.add(request.send().ignoreResult().catch_([](kj::Exception&&) {}));
  }
  auto request = sandbox_.endExecRequest();
  request.setExec(exec_);
  // Only what ended unasked says that the init may be dead: the broker waits
  // for it. A stream that we closed ended because we closed it.
  request.setStreamLost(streamLost_ && !exit_ && !failure_);
  return request.send().then([this](capnp::Response<rpc::Sandbox::EndExecResults>&& response) {
    if (response.getStatus().getReason() == rpc::Reason::SANDBOX_GONE) {
      // Released, or its time was up, while the program ran: that is its verdict.
      sandboxGone_ = true;
      after_ = before_;
      return;
    }
    if (response.getStatus().getCode() != rpc::Code::OK) {
      if (!error_) error_ = fromStatus(response.getStatus());
      return;
    }
    after_ = readCounters(response.getAfter());
    shared_ = shared_ || response.getSharedWith() > 0;
    endedBy_ = response.getEndedBy();
    // Counted while they were being killed.
    if (exit_ && endedBy_ != rpc::ExecEnd::RUNNING) exit_->leftRunning = 0;
    initExited_ = response.getInitExited();
    initSignal_ = response.getInitSignal();
    initCode_ = response.getInitCode();
  });
}

kj::Promise<void> ExecCall::destroySandbox() {
  return sandbox_.destroyRequest().send().then(
      [this](capnp::Response<rpc::Sandbox::DestroyResults>&& response) {
        releasedAt_ = std::chrono::steady_clock::now();
        if (response.getStatus().getCode() == rpc::Code::OK) {
          toProto(response.getReceipt(), receipt_);
        } else if (!error_) {
          error_ = fromStatus(response.getStatus());
        }
      });
}

verdict::Verdict ExecCall::judge() {
  verdict::Facts facts;
  facts.limits = effective_;
  facts.before = toVerdict(before_);
  facts.after = toVerdict(after_);
  facts.countersShared = shared_;
  facts.leftBehind = static_cast<uint32_t>(kj::min(leftBehind_, uint64_t{UINT32_MAX}));
  facts.fired = fired_;
  if (endedBy_ == rpc::ExecEnd::CPU_TIME && fired_ == verdict::Fired::kNobody) {
    facts.fired = verdict::Fired::kCpuTime;
  }
  facts.wallUs = static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(endedAt_ - startedAt_).count());
  if (exit_) {
    facts.exit = toVerdict(*exit_);
    // It ended by itself before our kill came.
    bool itself = !exit_->killedByHost && !exit_->killedByDeadline && !exit_->signaled;
    if (itself) facts.fired = verdict::Fired::kNobody;
  }
  // A program that never ran has counters all the same (a refused fork).
  if (failure_) facts.exit.emplace();
  facts.frontendDropped = delivered_[0].dropped + delivered_[1].dropped;
  facts.sandboxDestroyed = sandboxGone_;
  facts.initExited = initExited_;
  facts.initSignaled = initSignal_ != 0;
  facts.initCode = initSignal_ != 0 ? initSignal_ : initCode_;
  return verdict::judge(facts);
}

v1::ExecResponse ExecCall::result(const verdict::Verdict& verdict) {
  v1::ExecResponse response;
  auto& out = *response.mutable_result();
  if (exit_) {
    if (exit_->signaled) {
      out.set_signal(static_cast<int32_t>(exit_->code));
    } else {
      out.set_exit_code(static_cast<int32_t>(exit_->code));
    }
    out.set_left_running(exit_->leftRunning);
    auto totals = [&](unsigned stream, v1::StreamTotals& to) {
      to.set_total(exit_->streams[stream].total);
      to.set_dropped(exit_->streams[stream].total - delivered_[stream].bytes);
    };
    totals(0, *out.mutable_stdout());
    totals(1, *out.mutable_stderr());
  } else {
    // Nobody told: what was seen is what there is.
    auto totals = [&](unsigned stream, v1::StreamTotals& to) {
      to.set_total(delivered_[stream].bytes + delivered_[stream].dropped);
      to.set_dropped(delivered_[stream].dropped);
    };
    totals(0, *out.mutable_stdout());
    totals(1, *out.mutable_stderr());
  }
  if (failure_) toProto(*failure_, *out.mutable_not_started());
  toProto(verdict, *out.mutable_verdict());
  auto ms = [](std::chrono::steady_clock::duration d) {
    return std::chrono::duration<double, std::milli>(d).count();
  };
  usage(before_, after_, exit_ ? &*exit_ : nullptr, ms(endedAt_ - startedAt_),
        *out.mutable_usage());
  auto& timings = *out.mutable_timings();
  timings.set_acquire_ms(acquireMs_);
  timings.set_exec_ms(ms(endedAt_ - startedAt_));
  timings.set_release_ms(owned_ ? ms(releasedAt_ - endedAt_) : 0);
  if (owned_) *out.mutable_receipt() = receipt_;
  if (open_.exec.explain && !failure_) explain(*out.mutable_explanation());
  return response;
}

void ExecCall::complete() {
  phase_ = Phase::kFlushing;
  if (exit_ && !owned_) backend_.leftRunning.add(name_, exit_->leftRunning);
  if (error_) {
    logEnd(error_->reason.c_str());
  } else if (startedAt_ == std::chrono::steady_clock::time_point()) {
    logEnd("cancelled before the start");
  } else {
    verdict_ = judge();
    logEnd(verdict::name(verdict_.control));
  }
  if (cancelled_) discardOutput();
  sendOutput();
  flush();
}

void ExecCall::flush() {
  if (inFlight_.empty()) {
    flushed();
  } else {
    watchFlush(killed_ || error_ ? kClientStallKilled : kClientStall);
  }
}

void ExecCall::watchFlush(kj::Duration stall) {
  after(stall, [this, stall, seen = writesDone_] {
    if (phase_ != Phase::kFlushing) return;
    if (seen == writesDone_) {
      reactor_.cancel();  // its writes fail now, and the last one ends the call
    } else {
      watchFlush(stall);
    }
  });
}

void ExecCall::flushed() {
  phase_ = Phase::kDone;
  if (cancelled_ && !error_) {
    error_ =
        CallError{grpc::StatusCode::CANCELLED, "CANCELLED", "", "the call was cancelled", 0, 0};
  }
  if (error_) {
    reactor_.finish(*error_);
  } else {
    reactor_.finish(serialize(result(verdict_)), grpc::Status::OK);
  }
  whenDone_();
}

void ExecCall::logEnd(const char* verdict) {
  backend_.log->info("exec {} #{} uid {}: {} {:.1f} ms", name_.empty() ? "-" : name_, exec_,
                     open_.uid, verdict, msSince(open_.received));
}

double ExecCall::msSince(std::chrono::steady_clock::time_point then) const {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - then).count();
}

}  // namespace cordon::agents
