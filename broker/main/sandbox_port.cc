#include "broker/main/sandbox_port.h"

#include <kj/debug.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>

#include "broker/main/card.h"
#include "broker/main/info.h"
#include "broker/main/snapshots.h"

namespace cordon::broker {

namespace {
constexpr auto kInitStatusComes = 1 * kj::SECONDS;

Failure sandboxGone() {
  return failure(rpc::Reason::SANDBOX_GONE, "the sandbox has ended or is being destroyed");
}

// Owns the frontend's end until it has been passed on.
class StreamPort final : public rpc::Stream::Server {
 public:
  explicit StreamPort(kj::AutoCloseFd fd) : fd_(kj::mv(fd)) {}
  kj::Maybe<int> getFd() override { return fd_.get(); }

 private:
  kj::AutoCloseFd fd_;
};

kj::Maybe<Failure> tooWide(rpc::ExecLimits::Reader asked, const ResolvedLimits& most) {
  const struct {
    const char* name;
    uint64_t asked, most;
  } kEach[] = {{"cpuTimeMs", asked.getCpuTimeMs(), most.cpuTimeMs},
               {"wallMs", asked.getWallMs(), most.wallMs},
               {"fileSizeBytes", asked.getFileSizeBytes(), most.fileSizeBytes},
               {"files", asked.getFiles(), most.files},
               {"outputBytes", asked.getOutputBytes(), most.outputBytes}};
  for (auto& each : kEach) {
    if (each.most == 0 || each.asked <= each.most) continue;
    auto refused = failure(rpc::Reason::EXEC_LIMIT_TOO_WIDE, "wider than the sandbox's limit");
    refused.subject = each.name;
    refused.limit = each.most;
    return refused;
  }
  return nullptr;
}

bool present(const Sandbox& sandbox) {
  // Its parts are there, although its init may be dead.
  return !sandbox.gone && sandbox.entry.state != rpc::SandboxState::DESTROYING;
}

bool usable(Sandbox& sandbox) {
  return present(sandbox) && sandbox.initStatus() == nullptr;
}

// A stream to the agent: the frontend's end.
kj::OneOf<rpc::Stream::Client, Failure> openStream(Sandbox& sandbox) {
  if (!usable(sandbox)) return sandboxGone();
  auto end = kj::mv(sandbox.readyStream);
  if (end.get() < 0) {
    auto pair = ipc::socketPair(SOCK_STREAM | SOCK_NONBLOCK);
    auto& control = *KJ_ASSERT_NONNULL(sandbox.control);
    if (control.sendStream(pair.b.get()) != ipc::SendResult::kSent) {
      return failure(rpc::Reason::AGENT_UNRESPONSIVE, "the sandbox's agent takes no new stream");
    }
    end = kj::mv(pair.a);
  }
  return rpc::Stream::Client(kj::heap<StreamPort>(kj::mv(end)));
}

class SandboxPort final : public rpc::Sandbox::Server {
 public:
  SandboxPort(Services& services, Destruction& destruction, kj::Own<Sandbox> sandbox,
              kj::Own<PeerScope> peer)
      : services_(services),
        destruction_(destruction),
        sandbox_(kj::mv(sandbox)),
        peer_(kj::mv(peer)) {}

 protected:
  kj::Promise<void> inspect(InspectContext context) override {
    return guarded(services_.clock, "inspect", context, [&]() -> kj::Promise<void> {
      auto results = context.getResults();
      if (sandbox_->gone) {
        write(results.initStatus(), sandboxGone());
      } else {
        auto info = results.initInfo();
        write(info, *sandbox_, services_.timer.now(), true);
        writeCard(info.initCard(), *sandbox_, services_);
        writeOk(results.initStatus());
      }
      return kj::READY_NOW;
    });
  }

  kj::Promise<void> connect(ConnectContext context) override {
    return guarded(services_.clock, "connect", context, [&]() -> kj::Promise<void> {
      auto results = context.getResults();
      auto made = openStream(*sandbox_);
      if (made.is<Failure>()) {
        write(results.initStatus(), made.get<Failure>());
      } else {
        results.setStream(kj::mv(made.get<rpc::Stream::Client>()));
        writeOk(results.initStatus());
      }
      return kj::READY_NOW;
    });
  }

  kj::Promise<void> beginExec(BeginExecContext context) override {
    return guarded(services_.clock, "beginExec", context, [&]() -> kj::Promise<void> {
      auto params = context.getParams();
      answer(context.getResults(),
             broker::beginExec(*sandbox_, *peer_, params.getLimits(), params.getWithStream()));
      return kj::READY_NOW;
    });
  }

  kj::Promise<void> counters(CountersContext context) override {
    return guarded(services_.clock, "counters", context, [&]() -> kj::Promise<void> {
      auto results = context.getResults();
      if (!present(*sandbox_)) {
        write(results.initStatus(), sandboxGone());
        return kj::READY_NOW;
      }
      auto read = execs().counters(context.getParams().getExec());
      if (read.is<Failure>()) {
        write(results.initStatus(), read.get<Failure>());
      } else {
        auto& values = read.get<Counters>();
        write(results.initCounters(static_cast<uint>(values.size())), values);
        writeOk(results.initStatus());
      }
      return kj::READY_NOW;
    });
  }

  kj::Promise<void> endExec(EndExecContext context) override {
    return guarded(services_.clock, "endExec", context, [&]() -> kj::Promise<void> {
      if (!present(*sandbox_)) {
        finishExec(context);
        return kj::READY_NOW;
      }
      return execs()
          .settle(context.getParams().getExec())
          .then([this, context]() mutable { return initTold(context.getParams().getStreamLost()); })
          .then([this, context]() mutable {
            auto turn = services_.clock.turn("endExec");
            finishExec(context);
          });
    });
  }

  kj::Promise<void> killExec(KillExecContext context) override {
    return guarded(services_.clock, "killExec", context, [&]() -> kj::Promise<void> {
      if (!present(*sandbox_)) {
        write(context.getResults().initStatus(), sandboxGone());
        return kj::READY_NOW;
      }
      return execs()
          .kill(context.getParams().getExec())
          .then([context](kj::Maybe<Failure>&& failed) mutable {
            auto status = context.getResults().initStatus();
            KJ_IF_MAYBE (why, failed) {
              write(status, *why);
            } else {
              writeOk(status);
            }
          });
    });
  }

  kj::Promise<void> destroy(DestroyContext context) override {
    return guarded(services_.clock, "destroy", context, [&]() -> kj::Promise<void> {
      return destruction_.destroy(*sandbox_, "asked to").then([context](Receipt&& receipt) mutable {
        auto results = context.getResults();
        write(results.initReceipt(), receipt);
        writeOk(results.initStatus());
      });
    });
  }

  kj::Promise<void> snapshot(SnapshotContext context) override {
    return guarded(services_.clock, "snapshot", context, [&]() -> kj::Promise<void> {
      if (services_.snapshots == nullptr) {
        auto none = failure(rpc::Reason::UNSUPPORTED, "there are no snapshots here");
        write(context.getResults().initStatus(), none);
        return kj::READY_NOW;
      }
      return services_.snapshots->take(*sandbox_).then(
          [this, context](kj::OneOf<Snapshots::Taken, Failure>&& answer) mutable {
            auto results = context.getResults();
            if (answer.is<Failure>()) return write(results.initStatus(), answer.get<Failure>());
            auto& taken = answer.get<Snapshots::Taken>();
            if (!peer_->connected) return services_.snapshots->discard(taken.record.name);
            results.setName(taken.record.name);
            results.setToken(taken.token);
            write(results.initInfo(), taken.record);
            writeOk(results.initStatus());
          });
    });
  }

 private:
  Execs& execs() { return *KJ_ASSERT_NONNULL(sandbox_->execs); }

  // The stream ends a moment before the kernel tells of its init.
  kj::Promise<void> initTold(bool streamLost) {
    if (!streamLost || !present(*sandbox_) || sandbox_->initStatus() != nullptr)
      return kj::READY_NOW;
    auto& init = *KJ_ASSERT_NONNULL(sandbox_->init);
    return init.onExit().ignoreResult().exclusiveJoin(services_.timer.afterDelay(kInitStatusComes));
  }

  void finishExec(EndExecContext& context) {
    auto results = context.getResults();
    if (!present(*sandbox_)) return write(results.initStatus(), sandboxGone());
    auto ended = execs().end(context.getParams().getExec());
    if (ended.is<Failure>()) return write(results.initStatus(), ended.get<Failure>());
    auto& exec = ended.get<Execs::Ended>();
    write(results.initAfter(static_cast<uint>(exec.after.size())), exec.after);
    results.setSharedWith(exec.sharedWith);
    results.setEndedBy(exec.endedBy);
    KJ_IF_MAYBE (status, sandbox_->initStatus()) {
      results.setInitExited(true);
      if (status->signaled) {
        results.setInitSignal(static_cast<uint32_t>(status->code));
      } else {
        results.setInitCode(static_cast<uint32_t>(status->code));
      }
    }
    writeOk(results.initStatus());
  }

  Services& services_;
  Destruction& destruction_;
  kj::Own<Sandbox> sandbox_;
  kj::Own<PeerScope> peer_;
};
}  // namespace

kj::OneOf<BegunExec, Failure> beginExec(Sandbox& sandbox, PeerScope& peer,
                                        rpc::ExecLimits::Reader limits, bool withStream) {
  if (!usable(sandbox)) return sandboxGone();
  if (!peer.connected) return failure(rpc::Reason::NONE, "the frontend disconnected");
  KJ_IF_MAYBE (wide, tooWide(limits, sandbox.spec.limits)) return kj::mv(*wide);
  BegunExec result;
  if (withStream) {
    auto stream = openStream(sandbox);
    if (stream.is<Failure>()) return kj::mv(stream.get<Failure>());
    result.stream = kj::mv(stream.get<rpc::Stream::Client>());
  }
  auto& execs = *KJ_ASSERT_NONNULL(sandbox.execs);
  auto begun = execs.begin(limits.getCpuTimeMs(), peer);
  if (begun.is<Failure>()) return kj::mv(begun.get<Failure>());
  result.exec = kj::mv(begun.get<Execs::Begun>());
  return result;
}

rpc::Sandbox::Client makeSandboxPort(Services& services, Destruction& destruction,
                                     kj::Own<Sandbox> sandbox, kj::Own<PeerScope> peer) {
  return kj::heap<SandboxPort>(services, destruction, kj::mv(sandbox), kj::mv(peer));
}

}  // namespace cordon::broker
