#include "frontend/agents/exec_call.h"

#include <fcntl.h>
#include <grpcpp/impl/codegen/proto_utils.h>
#include <kj/debug.h>

#include "frontend/agents/exec_reactor.h"
#include "ipc/framing.h"
#include "ipc/guest.capnp.h"

namespace cordon::agents {
namespace {

using std::chrono::steady_clock;

// vm-agent must answer the start message by then.
constexpr auto kStartTimeout = 10 * kj::SECONDS;
// After a kill through the agent the broker is asked, and after that we give
// up waiting for the agent's word.
constexpr auto kKillGrace = 2 * kj::SECONDS;
constexpr auto kGiveUpGrace = 5 * kj::SECONDS;
// The stream of a dead sandbox ends a moment before its init can be waited for.
constexpr auto kLossSettles = 50 * kj::MILLISECONDS;
// The agent's own deadline, in case that we are gone.
constexpr uint64_t kBackstopMs = 500;
// So long what is not urgent waits after the start: to exchange messages with the
// client beside a short program costs as much as the program. `started` goes
// with the first output or the end if they come sooner.
constexpr auto kQuietStart = 2 * kj::MILLISECONDS;
// A client that takes nothing for so long has its call ended: after the
// program's own end, and when we stopped it.
constexpr auto kClientStall = 60 * kj::SECONDS;
constexpr auto kClientStallKilled = 5 * kj::SECONDS;
constexpr uint64_t kLongestWallMs = uint64_t{10} * 365 * 24 * 3600 * 1000;

// Output held for a client; a read may add a buffer's worth to it.
constexpr size_t kMostHeld = 256 * 1024;
// Writes given to gRPC: one under way and one to follow at once.
constexpr size_t kWritesAhead = 2;
// Stdin held for a program, beyond which no request is read.
constexpr size_t kMostStdin = 256 * 1024;
constexpr size_t kLargestStdinMessage = 1024 * 1024;
constexpr size_t kStdinChunk = guest::MAX_OUTPUT_CHUNK;
constexpr size_t kMostOutbox = 256 * 1024;
constexpr int kLargestSignal = 64;

kj::Array<capnp::word> frame(kj::FunctionParam<void(guest::HostMessage::Builder)> fill) {
  capnp::MallocMessageBuilder message;
  fill(message.initRoot<guest::HostMessage>());
  return ipc::frameMessage(message);
}

grpc::ByteBuffer serialize(const v1::ExecResponse& response) {
  grpc::ByteBuffer out;
  bool own;
  auto status = grpc::SerializationTraits<v1::ExecResponse>::Serialize(response, &out, &own);
  KJ_ASSERT(status.ok(), "a response that cannot be serialized");
  return out;
}

capnp::Data::Reader toData(const std::string& text) {
  return {reinterpret_cast<const kj::byte*>(text.data()), text.size()};
}

CallError guestProtocol(const std::string& why) {
  return {grpc::StatusCode::INTERNAL,
          "GUEST_PROTOCOL",
          "",
          "the sandbox's agent broke the protocol: " + why,
          0,
          0};
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
// Opening: the sandbox, the stream to its agent, the exec at the broker.

void ExecCall::begin() {
  // It may have been cancelled before anybody could be told.
  if (reactor_.isCancelled()) {
    cancelled();
    return windDown();
  }
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
  fillSpec(open_.sandbox, request.initSpec());
  return request.send().then(
      [this](capnp::Response<rpc::AgentPort::AcquireResults>&& response) -> kj::Promise<void> {
        if (response.getStatus().getCode() != rpc::Code::OK) {
          fail(fromStatus(response.getStatus()));
          return kj::READY_NOW;
        }
        sandbox_ = response.getSandbox();
        owned_ = true;
        name_ = response.getName();
        limits_ = fromRpc(response.getInfo().getLimits());
        hostRuntime_ = response.getInfo().getRuntime() == "host";
        acquireMs_ = msSince(open_.received);
        if (!narrowEnough()) return kj::READY_NOW;
        return open();
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
  auto stream = response.getStream();
  auto fd = stream.getFd();
  return fd.then([this, stream = kj::mv(stream)](kj::Maybe<int> borrowed) {
    int copy;
    KJ_SYSCALL(copy = fcntl(KJ_REQUIRE_NONNULL(borrowed, "the stream came without its fd"),
                            F_DUPFD_CLOEXEC, 3),
               "duplicating the stream");
    fd_ = kj::AutoCloseFd(copy);
    if (!narrowEnough()) return;
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
    leftBehind_ = backend_.leftRunning.of(name_);
    return onBegun(response);
  });
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

void ExecCall::fillLimits(rpc::ExecLimits::Builder limits) const {
  limits.setCpuTimeMs(open_.exec.limits.cpuTimeMs);
}

kj::Promise<void> ExecCall::open() {
  if (cancelled_) {
    windDown();
    return kj::READY_NOW;
  }
  auto request = sandbox_.beginExecRequest();
  fillLimits(request.initLimits());
  request.setWithStream(true);
  return request.send().then([this](capnp::Response<rpc::Sandbox::BeginExecResults>&& response) {
    return onBegun(response);
  });
}

// ---------------------------------------------------------------------------
// Running.

void ExecCall::startProgram() {
  phase_ = Phase::kRunning;
  effective_ = appliedLimits(limits_, open_.exec.limits);
  auto& stream = *stream_.emplace(
      kj::heap<GuestStream>(static_cast<GuestSink&>(*this), exec_, open_.exec.withStdin));
  auto& io = *io_.emplace(kj::heap<GuestIo>(backend_.loop.io().unixEventPort, kj::mv(fd_), stream,
                                            static_cast<GuestIo::Owner&>(*this)));
  startedAt_ = steady_clock::now();
  if (!open_.exec.withStdin) readLater();  // only signals may come
  stream.started();
  io.send(startFrame());
  io.begin();
  if (phase_ != Phase::kRunning) return;

  after(kStartTimeout, [this] {
    if (phase_ == Phase::kRunning && !KJ_ASSERT_NONNULL(stream_)->answered()) {
      fail(guestProtocol("no answer to the start message"));
    }
  });
  if (effective_.wallMs > 0) {
    after(static_cast<int64_t>(kj::min(effective_.wallMs, kLongestWallMs)) * kj::MILLISECONDS,
          [this] { onDeadline(); });
  }
  readMore();
}

kj::Array<capnp::word> ExecCall::startFrame() {
  return frame([this](guest::HostMessage::Builder message) {
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
// Requests after the first.

void ExecCall::request(v1::ExecRequest& request) {
  reading_ = false;
  if (phase_ != Phase::kRunning) return;
  switch (request.message_case()) {
    case v1::ExecRequest::kStdin:
      if (!open_.exec.withStdin || stdinEnds_) {
        return fail(invalid("STDIN_NOT_OPEN", "stdin", "the program's stdin is not open"));
      }
      if (request.stdin().size() > kLargestStdinMessage) {
        return fail(invalid("STDIN_TOO_LARGE", "stdin", "more than 1 MiB in one message",
                            kLargestStdinMessage));
      }
      if (!request.stdin().empty()) {
        stdinHeld_ += request.stdin().size();
        stdin_.push_back(std::move(*request.mutable_stdin()));
      }
      break;
    case v1::ExecRequest::kCloseStdin:
      if (request.close_stdin()) stdinEnds_ = true;
      break;
    case v1::ExecRequest::kSignal:
      if (request.signal() < 1 || request.signal() > kLargestSignal) {
        return fail(invalid("BAD_SIGNAL", "signal", "no such signal", kLargestSignal));
      }
      KJ_ASSERT_NONNULL(io_)->send(frame([&](guest::HostMessage::Builder message) {
        auto signal = message.initSignal();
        signal.setExec(exec_);
        signal.setSigno(static_cast<uint32_t>(request.signal()));
      }));
      break;
    default:
      return fail(invalid("BAD_SEQUENCE", "", "only stdin, close_stdin and signal may follow"));
  }
  pumpStdin();
}

void ExecCall::malformed() {
  reading_ = false;
  if (phase_ != Phase::kRunning) return;
  fail(invalid("MALFORMED_REQUEST", "", "the request is not an ExecRequest"));
}

void ExecCall::halfClosed() {
  stdinEnds_ = true;
  if (phase_ == Phase::kRunning) pumpStdin();
  // reading_ stays set: there is nothing more to read.
}

void ExecCall::pumpStdin() {
  auto& io = *KJ_ASSERT_NONNULL(io_);
  auto& stream = *KJ_ASSERT_NONNULL(stream_);
  while (!stdin_.empty() && stream.credit() > 0 && io.outbox() < kMostOutbox) {
    auto& front = stdin_.front();
    size_t n = kj::min(kj::min(front.size() - stdinSent_, kStdinChunk), stream.credit());
    io.send(frame([&](guest::HostMessage::Builder message) {
      auto chunk = message.initStdin();
      chunk.setExec(exec_);
      chunk.setBytes({reinterpret_cast<const kj::byte*>(front.data()) + stdinSent_, n});
    }));
    stream.spent(n);
    stdinSent_ += n;
    stdinHeld_ -= n;
    if (stdinSent_ == front.size()) {
      stdin_.pop_front();
      stdinSent_ = 0;
    }
  }
  if (stdinEnds_ && stdin_.empty() && open_.exec.withStdin && !stdinClosed_) {
    stdinClosed_ = true;
    io.send(frame([&](guest::HostMessage::Builder message) { message.setCloseStdin(exec_); }));
  }
  readMore();
}

void ExecCall::readLater() {
  reading_ = true;
  after(kQuietStart, [this] {
    reading_ = false;
    readMore();
  });
}

void ExecCall::readMore() {
  if (reading_ || phase_ != Phase::kRunning || stdinHeld_ >= kMostStdin ||
      KJ_ASSERT_NONNULL(io_)->outbox() >= kMostOutbox) {
    return;
  }
  reading_ = true;
  reactor_.readNext();
}

// ---------------------------------------------------------------------------
// Output to the client.

void ExecCall::sendStarted() {
  if (startedSent_) return;
  startedSent_ = true;
  v1::ExecResponse response;
  response.mutable_started()->set_name(name_);
  response.mutable_started()->set_acquire_ms(acquireMs_);
  send(serialize(response), 0);
}

void ExecCall::send(grpc::ByteBuffer message, size_t cost) {
  inFlight_.push_back(cost);
  reactor_.write(std::move(message));
}

void ExecCall::sendOutput() {
  while (inFlight_.size() < kWritesAhead && (!full_.empty() || !pending_.empty())) {
    if (full_.empty()) full_.push_back(std::exchange(pending_, {}));
    auto cost = full_.front().cost();
    send(full_.front().take(), cost);
    full_.pop_front();
  }
}

void ExecCall::discardOutput() {
  discarding_ = true;
  for (const auto& message : full_) held_ -= message.cost();
  held_ -= pending_.cost();
  full_.clear();
  pending_ = {};
}

void ExecCall::writeDone(size_t messages, bool ok) {
  writesDone_ += messages;
  for (; messages > 0; --messages) {
    held_ -= inFlight_.front();
    inFlight_.pop_front();
  }
  if (!ok) discardOutput();
  sendOutput();
  if (phase_ == Phase::kFlushing && inFlight_.empty()) {
    flushed();
  } else if (phase_ == Phase::kRunning && held_ < kMostHeld) {
    KJ_ASSERT_NONNULL(io_)->resume();
  }
}

// ---------------------------------------------------------------------------
// Interruptions.

template <typename Action>
void ExecCall::after(kj::Duration delay, Action action) {
  tasks_.add(backend_.loop.timer().afterDelay(delay).then(kj::mv(action)));
}

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
      frame([&](guest::HostMessage::Builder message) { message.setKill(exec_); }));
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

void ExecCall::kill() {
  if (killed_) return;
  killed_ = true;
  auto& io = *KJ_ASSERT_NONNULL(io_);
  io.send(frame([&](guest::HostMessage::Builder message) { message.setKill(exec_); }));
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

// ---------------------------------------------------------------------------
// The end: everything is given back, then the client is told.

void ExecCall::windDown() {
  if (phase_ != Phase::kOpening && phase_ != Phase::kRunning) return;
  phase_ = Phase::kWindingDown;
  endedAt_ = releasedAt_ = steady_clock::now();
  stdin_.clear();
  KJ_IF_MAYBE (io, io_) (*io)->close();
  auto settled = streamLost_ && !killed_ ? backend_.loop.timer().afterDelay(kLossSettles)
                                         : kj::Promise<void>(kj::READY_NOW);
  tasks_.add(settled.then([this] { return endAtBroker(); })
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
    if (response.getStatus().getCode() != rpc::Code::OK) {
      if (!error_) error_ = fromStatus(response.getStatus());
      return;
    }
    after_ = readCounters(response.getAfter());
    shared_ = shared_ || response.getSharedWith() > 0;
    endedBy_ = response.getEndedBy();
    initExited_ = response.getInitExited();
    initSignal_ = response.getInitSignal();
    initCode_ = response.getInitCode();
  });
}

kj::Promise<void> ExecCall::destroySandbox() {
  return sandbox_.destroyRequest().send().then(
      [this](capnp::Response<rpc::Sandbox::DestroyResults>&& response) {
        releasedAt_ = steady_clock::now();
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
  auto ms = [](steady_clock::duration d) {
    return std::chrono::duration<double, std::milli>(d).count();
  };
  usage(before_, after_, exit_ ? &*exit_ : nullptr, ms(endedAt_ - startedAt_),
        *out.mutable_usage());
  auto& timings = *out.mutable_timings();
  timings.set_acquire_ms(acquireMs_);
  timings.set_exec_ms(ms(endedAt_ - startedAt_));
  timings.set_release_ms(owned_ ? ms(releasedAt_ - endedAt_) : 0);
  if (owned_) *out.mutable_receipt() = receipt_;
  return response;
}

void ExecCall::complete() {
  phase_ = Phase::kFlushing;
  if (exit_ && !owned_) backend_.leftRunning.add(name_, exit_->leftRunning);
  if (error_) {
    logEnd(error_->reason.c_str());
  } else if (startedAt_ == steady_clock::time_point()) {
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

double ExecCall::msSince(steady_clock::time_point then) const {
  return std::chrono::duration<double, std::milli>(steady_clock::now() - then).count();
}

}  // namespace cordon::agents
