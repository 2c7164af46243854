// `explain`: the listener of the program's seccomp filter, from vm-agent's hands
// to the list in the result.
#include <kj/debug.h>

#include "frontend/agents/exec_call.h"

namespace cordon::agents {
namespace {

CallError unsupported(std::string why) {
  return {grpc::StatusCode::INVALID_ARGUMENT, "UNSUPPORTED", "explain", std::move(why), 0, 0};
}

CallError nothingToExplain() {
  return unsupported("`host` is no sandbox and refuses no system call: there is nothing to list");
}

}  // namespace

// Before anything is made for it.
bool ExecCall::admitExplain() {
  if (!open_.exec.explain) return true;
  if (open_.run && open_.sandbox.runtime == "host") {
    fail(nothingToExplain());
    return false;
  }
  explainSlot_ = backend_.explainSlots.take(open_.uid);
  if (explainSlot_ != nullptr) return true;
  fail({grpc::StatusCode::RESOURCE_EXHAUSTED, "TOO_MANY_EXPLAINED", "explain",
        "too many programs are being explained", ExplainSlots::kMostPerUser, 0});
  return false;
}

// When it is known what the sandbox is.
bool ExecCall::canExplain() {
  if (!open_.exec.explain) return true;
  if (hostRuntime_) {
    fail(nothingToExplain());
    return false;
  }
  profile_ = backend_.profile(seccomp_);
  if (profile_ != nullptr) return true;
  fail(unsupported("it is not known which seccomp profile the sandbox has"));
  return false;
}

// Whatever it is, it came from inside the sandbox.
void ExecCall::onDescriptors(std::vector<kj::AutoCloseFd> fds) {
  bool due = open_.exec.explain && listener_ == nullptr && phase_ == Phase::kRunning;
  if (due && fds.size() == 1 && isSeccompListener(fds[0])) {
    auto& port = backend_.loop.io().unixEventPort;
    // There may be no thread for it.
    KJ_IF_MAYBE (exception, kj::runCatchingExceptions([&] {
                   listener_ = kj::heap<Listener>(port, backend_.loop.timer(), kj::mv(fds[0]),
                                                  profile_, std::exchange(explainSlot_, nullptr));
                 })) {
      failed(kj::mv(*exception));
    }
    return;
  }
  backend_.bin.drop(std::move(fds));
  fail(guestProtocol("it sent a descriptor that nobody asked for"));
}

kj::Promise<void> ExecCall::stopListener() {
  KJ_IF_MAYBE (listener, listener_) return (*listener)->stop();
  return kj::READY_NOW;
}

void ExecCall::explain(v1::Explanation& out) const {
  std::string lacks;
  auto add = [&](const std::string& why) { lacks += (lacks.empty() ? "" : "; ") + why; };
  KJ_IF_MAYBE (listener, listener_) {
    if (!(*listener)->stopped()) {
      add("the listener did not end in time, and what it counted is lost");
    } else {
      (*listener)->calls().list(out);
      if ((*listener)->calls().strange()) {
        add("the kernel asked about calls that the profile does not refuse: the sandbox's filter "
            "is "
            "another");
      }
    }
  } else {
    add("the sandbox's agent handed over no listener: nothing was counted");
  }
  if (!asks_) {
    add("the sandbox was not made to be explained: calls that the profile `default` refuses as "
        "well "
        "are not listed");
  }
  if (!exit_) add("the end of the program was not told: what it was refused then is not listed");
  if (exit_ && exit_->leftRunning > 0) {
    add("processes were left running: what is refused to them from now on fails with ENOSYS and is "
        "not listed");
  }
  out.set_incomplete(lacks);
}

}  // namespace cordon::agents
