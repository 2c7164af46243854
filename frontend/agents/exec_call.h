// One Exec or Run call, from its request to its result: a state machine on the
// loop thread. The steps:
//
//   Exec: AgentPort.beginExec       ┐
//   Run: acquire, Sandbox.beginExec ┴→ start → output … exited
//                                    → endExec (+ Run: destroy) → result
//
// From the first effect on, every path leads through windDown(): the exec is
// ended at the broker and a Run's sandbox is destroyed, whatever the client,
// the guest or the broker did. See docs/api.md for what a client sees.
//
// In files by topic: exec_call_opening.cc, exec_call.cc (the program runs, and
// what interrupts it), exec_call_client.cc, exec_call_explain.cc, exec_call_end.cc.
#pragma once
#include <kj/async.h>
#include <kj/common.h>

#include <array>
#include <chrono>
#include <deque>
#include <optional>
#include <string>

#include "frontend/agents/backend.h"
#include "frontend/agents/guest_io.h"
#include "frontend/agents/guest_stream.h"
#include "frontend/agents/listener.h"
#include "frontend/agents/output_message.h"
#include "frontend/agents/result.h"
#include "frontend/agents/validate.h"

namespace cordon::agents {

class ExecReactor;

// A request that was found good.
struct OpenRequest {
  bool run = false;
  uint32_t uid = 0;
  SandboxId id;         // Exec
  SandboxPlan sandbox;  // Run
  ExecPlan exec;
  std::chrono::steady_clock::time_point received;
};

class ExecCall final : private GuestSink,
                       private GuestIo::Owner,
                       private kj::TaskSet::ErrorHandler {
 public:
  // `whenDone` is called once, from within this object, after the reactor was
  // finished; it has this object removed later.
  ExecCall(Backend& backend, ExecReactor& reactor, OpenRequest request,
           kj::Function<void()> whenDone);
  ~ExecCall() noexcept(false);
  KJ_DISALLOW_COPY(ExecCall);

  void begin();
  uint32_t uid() const { return open_.uid; }

  // From the reactor.
  void request(v1::ExecRequest& request);
  void malformed();
  void halfClosed();  // no more requests
  void cancelled();   // by the client, its deadline, or its end
  void writeDone(size_t messages, bool ok);
  // A step of this call threw: it ends with an error.
  void failed(kj::Exception&& exception);

 private:
  // So long what is not urgent waits after the start: to exchange messages with
  // the client beside a short program costs as much as the program. `started`
  // goes with the first output or the end if they come sooner.
  static constexpr auto kQuietStart = 2 * kj::MILLISECONDS;

  enum class Phase : uint8_t {
    kOpening,      // asking the broker
    kRunning,      // the start message was sent
    kWindingDown,  // giving everything back
    kFlushing,     // the client gets what is left
    kDone,
  };

  // The pipeline.
  kj::Promise<void> acquire(rpc::AgentPort::Client& port);
  kj::Promise<void> attach(rpc::AgentPort::Client& port);
  using BegunPromise = capnp::RemotePromise<rpc::Sandbox::BeginExecResults>;
  capnp::Request<rpc::Sandbox::BeginExecParams, rpc::Sandbox::BeginExecResults> beginRequest();
  bool limitsAsked() const;
  void fillLimits(rpc::ExecLimits::Builder limits) const;
  template <typename Begun>
  kj::Promise<void> onBegun(Begun& response);
  void startProgram();
  kj::Array<capnp::word> startFrame();
  void windDown();
  kj::Promise<void> endAtBroker();
  kj::Promise<void> endExec();
  kj::Promise<void> destroySandbox();
  void complete();
  void flushed();

  // explain. False: fail() was called.
  bool admitExplain();
  bool canExplain();
  kj::Promise<void> stopListener();
  void explain(v1::Explanation& out) const;

  // What interrupts it.
  bool narrowEnough();  // false: fail() was called
  void countLeftBehind();
  void fail(CallError error);
  void onBrokerLost();
  void onDeadline();
  void onStartTimeout();
  CallError lateStart() const;
  void kill();
  template <typename Action>
  void after(kj::Duration delay, Action action) {
    tasks_.add(backend_.loop.timer().afterDelay(delay).then(kj::mv(action)));
  }

  // GuestSink
  void onStarted() override;
  bool onOutput(unsigned stream, uint64_t offset, grpc::Slice bytes, size_t cost) override;
  void onCredit(uint32_t bytes) override;
  void onExited(GuestExit exit) override;
  void onFailed(GuestFailure failure) override;
  // GuestIo::Owner
  void onDescriptors(std::vector<kj::AutoCloseFd> fds) override;
  void onBatch() override;
  void onStreamEnd(GuestFault fault) override;
  void onSent() override;

  void taskFailed(kj::Exception&& exception) override { failed(kj::mv(exception)); }

  // Output to the client.
  void sendStarted();
  void sendOutput();
  void discardOutput();
  void send(grpc::ByteBuffer message, size_t cost);
  void flush();
  void watchFlush(kj::Duration stall);

  // Input from the client.
  void pumpStdin();
  void readMore();
  void readLater();

  verdict::Verdict judge();
  v1::ExecResponse result(const verdict::Verdict& verdict);
  void logEnd(const char* verdict);
  double msSince(std::chrono::steady_clock::time_point then) const;

  Backend& backend_;
  ExecReactor& reactor_;
  const OpenRequest open_;
  kj::Function<void()> whenDone_;
  Phase phase_ = Phase::kOpening;

  // The sandbox and the exec at the broker.
  std::string name_;
  rpc::Sandbox::Client sandbox_ = nullptr;
  bool owned_ = false;  // ours to destroy (Run)
  bool hostRuntime_ = false;
  std::string seccomp_;        // the profile's name
  bool asks_ = false;          // the sandbox was made with `explain`
  LimitValues limits_;         // the sandbox's
  verdict::Limits effective_;  // narrowed by the exec's
  uint32_t exec_ = 0;          // 0 = not begun
  uint64_t leftBehind_ = 0;    // by earlier execs
  std::vector<CounterValue> before_, after_;
  bool shared_ = false;
  rpc::ExecEnd endedBy_ = rpc::ExecEnd::RUNNING;
  bool initExited_ = false, sandboxGone_ = false;
  uint32_t initSignal_ = 0, initCode_ = 0;
  v1::Receipt receipt_;

  // The guest.
  kj::AutoCloseFd fd_;
  kj::Maybe<kj::Own<GuestStream>> stream_;
  kj::Maybe<kj::Own<GuestIo>> io_;  // goes before stream_
  std::optional<GuestExit> exit_;
  std::optional<GuestFailure> failure_;
  bool streamLost_ = false;  // it ended unasked and without a last message

  // explain.
  std::shared_ptr<void> explainSlot_;
  Program profile_;
  kj::Maybe<kj::Own<Listener>> listener_;

  // How it goes.
  bool cancelled_ = false, killed_ = false, startedLate_ = false;
  verdict::Fired fired_ = verdict::Fired::kNobody;
  std::optional<CallError> error_;
  verdict::Verdict verdict_;
  std::chrono::steady_clock::time_point startedAt_, endedAt_, releasedAt_;
  double acquireMs_ = 0;

  // Output under way to the client.
  struct Delivered {
    uint64_t bytes = 0, dropped = 0;  // dropped here, not by the agent
  };
  std::array<Delivered, 2> delivered_;
  bool started_ = false, startedSent_ = false, discarding_ = false;
  OutputMessage pending_;
  std::deque<OutputMessage> full_;
  std::deque<size_t> inFlight_;  // costs of what the reactor has; 0: not output
  size_t outputsInFlight_ = 0;
  size_t held_ = 0;  // cost of all of it
  // A batch of GuestIo's may come on top of it.
  static constexpr size_t kMostHeld = 512 * 1024;
  uint64_t writesDone_ = 0;

  // Input.
  std::deque<std::string> stdin_;
  size_t stdinHeld_ = 0, stdinSent_ = 0;  // sent of the first
  bool stdinEnds_ = false, stdinClosed_ = false, reading_ = false;

  kj::TaskSet tasks_;  // goes first
};

}  // namespace cordon::agents
