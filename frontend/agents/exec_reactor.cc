#include "frontend/agents/exec_reactor.h"

#include <chrono>

#include "frontend/agents/exec_calls.h"
#include "frontend/agents/exec_messages.h"
#include "ipc/agent.pb.h"

namespace cordon::agents {
namespace {

// Throws Refused.
OpenRequest readOpen(grpc::ByteBuffer& bytes, bool run) {
  v1::ExecRequest request;
  if (!parse(bytes, request)) {
    throw Refused{invalid("MALFORMED_REQUEST", "", "the request is not an ExecRequest")};
  }
  OpenRequest open;
  open.run = run;
  if (run) {
    if (!request.has_run()) throw Refused{invalid("BAD_SEQUENCE", "run", "`run` comes first")};
    open.sandbox = planSandbox(request.run().sandbox());
    open.exec = planExec(request.run().exec());
  } else {
    if (!request.has_start())
      throw Refused{invalid("BAD_SEQUENCE", "start", "`start` comes first")};
    open.id = parseId(request.start().id());
    open.exec = planExec(request.start().exec());
  }
  return open;
}

}  // namespace

ExecReactor::ExecReactor(ExecCalls& calls, grpc::CallbackServerContext& context, uint32_t uid,
                         bool run)
    : calls_(calls), context_(context), uid_(uid), run_(run), number_(calls.newNumber()) {
  StartRead(&incoming_);
}

void ExecReactor::OnReadDone(bool ok) {
  if (opened_) {
    next(ok);
  } else {
    first(ok);
  }
}

void ExecReactor::first(bool ok) {
  if (!ok) {
    finish(invalid("BAD_SEQUENCE", run_ ? "run" : "start", "the call ended without a request"));
    return;
  }
  try {
    auto open = readOpen(incoming_, run_);
    open.uid = uid_;
    open.received = std::chrono::steady_clock::now();
    opened_ = true;
    // From here on this object may be gone at any time.
    calls_.open(number_, *this, std::move(open));
  } catch (const Refused& refused) {
    finish(refused.error);
  }
}

void ExecReactor::next(bool ok) {
  if (!ok) {
    calls_.post(number_, [](ExecCall& call) { call.halfClosed(); });
    return;
  }
  v1::ExecRequest request;
  bool good = parse(incoming_, request);
  calls_.post(number_, [good, request = std::move(request)](ExecCall& call) mutable {
    if (good) {
      call.request(request);
    } else {
      call.malformed();
    }
  });
}

void ExecReactor::OnCancel() {
  calls_.post(number_, [](ExecCall& call) { call.cancelled(); });
}

void ExecReactor::readNext() {
  StartRead(&incoming_);
}

void ExecReactor::write(grpc::ByteBuffer message) {
  {
    std::lock_guard lock(mutex_);
    if (writing_) {
      ready_.push_back(std::move(message));
      return;
    }
    writing_ = true;
    current_.Swap(&message);
  }
  StartWrite(&current_);
}

void ExecReactor::OnWriteDone(bool ok) {
  size_t done = 1;
  bool more = false;
  {
    std::lock_guard lock(mutex_);
    if (!ok) {  // nothing that follows can be written either
      done += ready_.size();
      ready_.clear();
    }
    current_.Clear();
    more = !ready_.empty();
    if (more) {
      current_.Swap(&ready_.front());
      ready_.pop_front();
    } else {
      writing_ = false;
    }
  }
  auto number = number_;
  auto& calls = calls_;
  if (more) StartWrite(&current_);
  // A write that is still outstanding keeps this object; without one the call
  // may finish as soon as it hears of this.
  calls.post(number, [done, ok](ExecCall& call) { call.writeDone(done, ok); });
}

void ExecReactor::finish(grpc::ByteBuffer last, const grpc::Status& status) {
  if (!last.Valid()) {
    Finish(status);
    return;
  }
  last_.Swap(&last);
  StartWriteAndFinish(&last_, grpc::WriteOptions(), status);
}

void ExecReactor::finish(const CallError& error) {
  Finish(toStatus(error, context_));
}

}  // namespace cordon::agents
