// The first part of a call: the sandbox, the stream to its agent, the exec at the
// broker.
#include <fcntl.h>
#include <kj/debug.h>

#include "frontend/agents/exec_call.h"
#include "frontend/agents/exec_reactor.h"

namespace cordon::agents {

void ExecCall::begin() {
  // It may have been cancelled before anybody could be told.
  if (reactor_.isCancelled()) {
    cancelled();
    return windDown();
  }
  if (!admitExplain()) return;
  KJ_IF_MAYBE (port, backend_.port()) {
    KJ_IF_MAYBE (link, backend_.link) {
      tasks_.add((*link)->whenLost().then([this] { onBrokerLost(); }));
    }
    tasks_.add(open_.run ? acquire(*port) : attach(*port));
  } else {
    fail(brokerUnavailable());
  }
}

kj::Promise<void> ExecCall::acquire(rpc::AgentPort::Client& port) {
  auto request = port.acquireRequest();
  request.initOwner().setUid(open_.uid);
  asks_ = open_.sandbox.explain || open_.exec.explain;
  auto spec = request.initSpec();
  fillSpec(open_.sandbox, spec);
  spec.setExplain(asks_);
  request.setWhileConnected(true);
  auto acquired = request.send();
  sandbox_ = acquired.getSandbox();
  // Sent at once: the broker begins the exec as soon as there is a sandbox. Limits
  // of its own are compared with the sandbox's first.
  kj::Maybe<BegunPromise> begun;
  if (!limitsAsked()) begun = beginRequest().send();
  return acquired.then(
      [this, begun = kj::mv(begun)](
          capnp::Response<rpc::AgentPort::AcquireResults>&& response) mutable -> kj::Promise<void> {
        if (response.getStatus().getCode() != rpc::Code::OK) {
          fail(fromStatus(response.getStatus()));
          return kj::READY_NOW;
        }
        sandbox_ = response.getSandbox();
        owned_ = true;
        name_ = response.getName();
        limits_ = fromRpc(response.getInfo().getLimits());
        hostRuntime_ = response.getInfo().getRuntime() == "host";
        seccomp_ = response.getInfo().getSeccomp().getName();
        acquireMs_ = msSince(open_.received);
        if (!narrowEnough()) return kj::READY_NOW;
        if (cancelled_) {
          windDown();
          return kj::READY_NOW;
        }
        if (begun == nullptr) begun = beginRequest().send();
        return KJ_ASSERT_NONNULL(begun).then(
            [this](capnp::Response<rpc::Sandbox::BeginExecResults>&& answer) {
              return onBegun(answer);
            });
      });
}

template <typename Begun>
kj::Promise<void> ExecCall::onBegun(Begun& response) {
  if (response.getStatus().getCode() != rpc::Code::OK) {
    fail(fromStatus(response.getStatus()));
    return kj::READY_NOW;
  }
  exec_ = response.getExec();
  before_ = readCounters(response.getBefore());
  shared_ = response.getSharedWith() > 0;
  countLeftBehind();
  auto stream = response.getStream();
  auto fd = stream.getFd();
  return fd.then([this, stream = kj::mv(stream)](kj::Maybe<int> borrowed) {
    int copy;
    KJ_SYSCALL(copy = fcntl(KJ_REQUIRE_NONNULL(borrowed, "the stream came without its fd"),
                            F_DUPFD_CLOEXEC, 3),
               "duplicating the stream");
    fd_ = kj::AutoCloseFd(copy);
    if (!narrowEnough() || !canExplain()) return;
    if (cancelled_) return windDown();
    startProgram();
  });
}

kj::Promise<void> ExecCall::attach(rpc::AgentPort::Client& port) {
  name_ = open_.id.name;
  auto request = port.beginExecRequest();
  request.initOwner().setUid(open_.uid);
  request.setName(open_.id.name);
  request.setToken(open_.id.token);
  fillLimits(request.initExec());
  auto begun = request.send();
  sandbox_ = begun.getSandbox();
  return begun.then([this](capnp::Response<rpc::AgentPort::BeginExecResults>&& response) {
    acquireMs_ = msSince(open_.received);
    limits_ = fromRpc(response.getLimits());
    hostRuntime_ = response.getRuntime() == "host";
    seccomp_ = response.getSeccomp();
    asks_ = response.getAsks();
    return onBegun(response);
  });
}

// What earlier execs left running may have ended since.
void ExecCall::countLeftBehind() {
  if (hostRuntime_) {  // where nothing else tells
    leftBehind_ = backend_.leftRunning.of(name_);
    return;
  }
  if (!shared_) backend_.leftRunning.forget(name_);
  leftBehind_ = backend_.leftRunning.of(name_);
  for (const auto& counter : before_) {
    if (counter.kind == rpc::CounterKind::PIDS_NOW && counter.scope == rpc::Scope::SANDBOX) {
      leftBehind_ = kj::min(leftBehind_, counter.value);
    }
  }
}

bool ExecCall::narrowEnough() {
  try {
    requireNarrower(open_.exec.limits, limits_);
    return true;
  } catch (const Refused& refused) {
    fail(refused.error);
    return false;
  }
}

bool ExecCall::limitsAsked() const {
  const auto& asked = open_.exec.limits;
  return (asked.cpuTimeMs | asked.wallMs | asked.fileSizeBytes | asked.files | asked.outputBytes) !=
         0;
}

void ExecCall::fillLimits(rpc::ExecLimits::Builder limits) const {
  const auto& asked = open_.exec.limits;
  limits.setCpuTimeMs(asked.cpuTimeMs);
  limits.setWallMs(asked.wallMs);
  limits.setFileSizeBytes(asked.fileSizeBytes);
  limits.setFiles(asked.files);
  limits.setOutputBytes(asked.outputBytes);
}

capnp::Request<rpc::Sandbox::BeginExecParams, rpc::Sandbox::BeginExecResults>
ExecCall::beginRequest() {
  auto request = sandbox_.beginExecRequest();
  fillLimits(request.initLimits());
  request.setWithStream(true);
  return request;
}

}  // namespace cordon::agents
