#include "frontend/agents/exec_call.h"

#include <kj/debug.h>

#include "frontend/agents/exec_messages.h"
#include "frontend/agents/exec_reactor.h"
#include "ipc/guest.capnp.h"

namespace cordon::agents {
namespace {

using std::chrono::steady_clock;

// The program must run by then.
constexpr auto kStartTimeout = 10 * kj::SECONDS;
// After a kill through the agent the broker is asked, and after that we give
// up waiting for the agent's word.
constexpr auto kKillGrace = 2 * kj::SECONDS;
constexpr auto kGiveUpGrace = 5 * kj::SECONDS;
// The agent's own deadline, in case that we are gone.
constexpr uint64_t kBackstopMs = 500;
constexpr uint64_t kLongestWallMs = uint64_t{10} * 365 * 24 * 3600 * 1000;

capnp::Data::Reader toData(const std::string& text) {
  return {reinterpret_cast<const kj::byte*>(text.data()), text.size()};
}

}  // namespace

ExecCall::ExecCall(Backend& backend, ExecReactor& reactor, OpenRequest request,
                   kj::Function<void()> whenDone)
    : backend_(backend),
      reactor_(reactor),
      open_(std::move(request)),
      whenDone_(kj::mv(whenDone)),
      tasks_(*this) {}

ExecCall::~ExecCall() noexcept(false) {}

// ---------------------------------------------------------------------------
// Running.

void ExecCall::startProgram() {
  phase_ = Phase::kRunning;
  effective_ = appliedLimits(limits_, open_.exec.limits);
  auto& stream = *stream_.emplace(
      kj::heap<GuestStream>(static_cast<GuestSink&>(*this), exec_, open_.exec.withStdin));
  auto& io = *io_.emplace(kj::heap<GuestIo>(backend_.loop.io().unixEventPort, kj::mv(fd_), stream,
                                            static_cast<GuestIo::Owner&>(*this), backend_.bin));
  startedAt_ = steady_clock::now();
  if (!open_.exec.withStdin) readLater();  // only signals may come
  stream.started();
  io.send(startFrame());
  io.begin();
  if (phase_ != Phase::kRunning) return;

  after(kStartTimeout, [this] { onStartTimeout(); });
  if (effective_.wallMs > 0) {
    after(static_cast<int64_t>(kj::min(effective_.wallMs, kLongestWallMs)) * kj::MILLISECONDS,
          [this] { onDeadline(); });
  }
  readMore();
}

kj::Array<capnp::word> ExecCall::startFrame() {
  return hostFrame([this](guest::HostMessage::Builder message) {
    auto start = message.initStart();
    start.setExec(exec_);
    auto copy = [](const std::vector<std::string>& from, auto to) {
      for (size_t i = 0; i < from.size(); ++i) to.set(static_cast<kj::uint>(i), toData(from[i]));
    };
    auto env = environment(open_.exec, hostRuntime_);
    copy(open_.exec.argv, start.initArgv(static_cast<kj::uint>(open_.exec.argv.size())));
    copy(env, start.initEnv(static_cast<kj::uint>(env.size())));
    start.setCwd(toData(open_.exec.cwd));
    start.setUser(open_.exec.user);
    start.setStdin(open_.exec.withStdin);
    start.setExplain(open_.exec.explain);
    // 0 = the sandbox's own, which the agent knows.
    const auto& limits = open_.exec.limits;
    start.setFileSizeBytes(limits.fileSizeBytes);
    start.setFiles(static_cast<uint32_t>(limits.files));
    start.setCpuTimeMs(limits.cpuTimeMs);
    start.setOutputBytes(limits.outputBytes);
    // The sandbox's own deadline has the same margin on top.
    bool narrower = limits.wallMs != 0 && (limits_.wallMs == 0 || limits.wallMs < limits_.wallMs);
    start.setDeadlineMs(narrower ? limits.wallMs + kBackstopMs : 0);
  });
}

void ExecCall::onStarted() {
  started_ = true;
  after(kQuietStart, [this] {
    if (phase_ == Phase::kRunning) sendStarted();
  });
}

bool ExecCall::onOutput(unsigned stream, uint64_t offset, grpc::Slice bytes, size_t cost) {
  sendStarted();
  auto& delivered = delivered_[stream];
  uint64_t allowed = bytes.size();
  if (effective_.outputBytes != 0) {
    allowed = kj::min(allowed, effective_.outputBytes - delivered.bytes);
  }
  if (discarding_) allowed = 0;
  delivered.dropped += bytes.size() - allowed;
  if (allowed == 0) return false;
  delivered.bytes += allowed;
  if (allowed < bytes.size()) bytes = bytes.sub(0, allowed);
  if (!pending_.accepts(stream, offset)) full_.push_back(std::exchange(pending_, {}));
  auto before = pending_.cost();
  pending_.add(stream, offset, std::move(bytes), cost);
  held_ += pending_.cost() - before;
  return true;
}

void ExecCall::onCredit(uint32_t) {}  // onBatch() looks

void ExecCall::onExited(GuestExit exit) {
  exit_ = std::move(exit);
}

void ExecCall::onFailed(GuestFailure failure) {
  failure_ = failure;
}

void ExecCall::onBatch() {
  sendOutput();
  if (exit_ || failure_) {
    windDown();
    return;
  }
  pumpStdin();
  if (held_ < kMostHeld) return;
  if (killed_) {
    // The program is over and its end stands behind what the client does not
    // take.
    discarding_ = true;
  } else {
    KJ_ASSERT_NONNULL(io_)->pause();
  }
}

void ExecCall::onStreamEnd(GuestFault fault) {
  if (phase_ != Phase::kRunning) return;
  if (fault != GuestFault::kNone) {
    exit_.reset();  // not to be believed either, and the broker shall kill
    failure_.reset();
    fail(guestProtocol(name(fault)));
    return;
  }
  streamLost_ = true;
  windDown();
}

void ExecCall::onSent() {
  if (phase_ != Phase::kRunning) return;
  pumpStdin();
}

// ---------------------------------------------------------------------------
// Interruptions.

void ExecCall::fail(CallError error) {
  if (phase_ != Phase::kOpening && phase_ != Phase::kRunning) return;
  if (!error_) error_ = std::move(error);
  windDown();
}

void ExecCall::onBrokerLost() {
  // In other phases the calls on the broker fail by themselves.
  if (phase_ != Phase::kRunning) return;
  error_ = CallError{grpc::StatusCode::UNAVAILABLE,
                     "BROKER_LOST",
                     "",
                     "the connection to the broker was lost during the call",
                     0,
                     0};
  // The end of the stream kills as well; this says so.
  KJ_ASSERT_NONNULL(io_)->send(
      hostFrame([&](guest::HostMessage::Builder message) { message.setKill(exec_); }));
  windDown();
}

void ExecCall::cancelled() {
  if (cancelled_) return;
  cancelled_ = true;
  discardOutput();
  if (phase_ != Phase::kRunning) return;  // the next step sees it
  if (fired_ == verdict::Fired::kNobody) fired_ = verdict::Fired::kCancel;
  kill();
}

void ExecCall::onDeadline() {
  if (phase_ != Phase::kRunning) return;
  if (fired_ == verdict::Fired::kNobody) fired_ = verdict::Fired::kDeadline;
  kill();
}

// Whether it is the agent that does not answer or its child that does not get
// to the program shows when it is to kill that child.
void ExecCall::onStartTimeout() {
  if (phase_ != Phase::kRunning || killed_ || KJ_ASSERT_NONNULL(stream_)->answered()) return;
  startedLate_ = true;
  kill();
}

CallError ExecCall::lateStart() const {
  if (!exit_ && !failure_) return guestProtocol("no answer to the start message, nor to a kill");
  return {grpc::StatusCode::DEADLINE_EXCEEDED,
          "START_TIMEOUT",
          "",
          "the program did not run within " + std::to_string(kStartTimeout / kj::SECONDS) +
              " s of its start and was killed; a sandbox without free memory can be that slow",
          0,
          0};
}

void ExecCall::kill() {
  if (killed_) return;
  killed_ = true;
  auto& io = *KJ_ASSERT_NONNULL(io_);
  io.send(hostFrame([&](guest::HostMessage::Builder message) { message.setKill(exec_); }));
  if (held_ >= kMostHeld) discarding_ = true;
  io.resume();
  after(kKillGrace, [this] {
    if (phase_ != Phase::kRunning) return;
    auto request = sandbox_.killExecRequest();
    request.setExec(exec_);
    tasks_.add(request.send().ignoreResult());
    after(kGiveUpGrace, [this] {
      if (phase_ == Phase::kRunning) windDown();
    });
  });
}

void ExecCall::failed(kj::Exception&& exception) {
  backend_.log->error("{}: a step failed: {}", name_, exception.getDescription().cStr());
  if (phase_ != Phase::kFlushing) return fail(fromException(exception));
  // All was given back already; what the client still gets is the error.
  if (!error_) error_ = fromException(exception);
  discardOutput();
  flush();
}

}  // namespace cordon::agents
