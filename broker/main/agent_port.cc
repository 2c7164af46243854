#include "broker/main/agent_port.h"

#include "broker/main/info.h"
#include "broker/main/sandbox_port.h"
#include "broker/main/snapshots.h"

namespace cordon::broker {

namespace {
constexpr uint32_t kLargestPage = 500;

class AgentPort final : public rpc::AgentPort::Server {
 public:
  AgentPort(Services& services, Registry& registry, Creation& creation, Destruction& destruction,
            kj::Own<PeerScope> peer)
      : services_(services),
        registry_(registry),
        creation_(creation),
        destruction_(destruction),
        peer_(kj::mv(peer)) {}

 protected:
  kj::Promise<void> acquire(AcquireContext context) override {
    return guarded(services_.clock, "acquire", context, [&]() -> kj::Promise<void> {
      auto params = context.getParams();
      return creation_
          .create(params.getOwner().getUid(), params.getSpec(), kj::addRef(*peer_),
                  params.getWhileConnected())
          .then([this, context](kj::OneOf<Created, Failure>&& answer) mutable {
            auto turn = services_.clock.turn("acquire: answer");
            auto results = context.getResults();
            if (answer.is<Failure>()) return write(results.initStatus(), answer.get<Failure>());
            auto& created = answer.get<Created>();
            results.setName(created.sandbox->name());
            results.setToken(created.token);
            write(results.initInfo(), *created.sandbox, services_.timer.now(), false);
            results.setSandbox(port(kj::mv(created.sandbox)));
            writeOk(results.initStatus());
          });
    });
  }

  kj::Promise<void> attach(AttachContext context) override {
    return guarded(services_.clock, "attach", context, [&]() -> kj::Promise<void> {
      auto params = context.getParams();
      auto results = context.getResults();
      KJ_IF_MAYBE (sandbox, registry_.attach(params.getOwner().getUid(), params.getName(),
                                             params.getToken())) {
        results.setSandbox(port(kj::addRef(*sandbox)));
        writeOk(results.initStatus());
      } else {
        write(results.initStatus(), noSuchSandbox());
      }
      return kj::READY_NOW;
    });
  }

  kj::Promise<void> beginExec(BeginExecContext context) override {
    return guarded(services_.clock, "beginExec", context, [&]() -> kj::Promise<void> {
      auto params = context.getParams();
      auto results = context.getResults();
      KJ_IF_MAYBE (sandbox, registry_.attach(params.getOwner().getUid(), params.getName(),
                                             params.getToken())) {
        answer(results, broker::beginExec(*sandbox, *peer_, params.getExec(), true));
        results.setRuntime(sandbox->entry.runtime);
        if (sandbox->profile != nullptr) results.setSeccomp(sandbox->profile->name);
        results.setAsks(sandbox->spec.explain);
        write(results.initLimits(), sandbox->spec.limits);
        results.setSandbox(port(kj::addRef(*sandbox)));
      } else {
        write(results.initStatus(), noSuchSandbox());
      }
      return kj::READY_NOW;
    });
  }

  kj::Promise<void> list(ListContext context) override {
    auto turn = services_.clock.turn("list");
    return kj::evalNow([&]() {
             auto params = context.getParams();
             auto asked = params.getMost();
             size_t most = asked == 0 ? kLargestPage : kj::min(asked, kLargestPage);
             // One more than the page: whether there are more.
             auto own = registry_.of(params.getOwner().getUid(), params.getAfter(), most + 1);
             context.getResults().setMore(own.size() > most);
             auto count = static_cast<uint>(kj::min(own.size(), most));
             auto out = context.getResults().initSandboxes(count);
             for (uint i = 0; i < count; ++i) {
               write(out[i], *own[i], services_.timer.now(), false);
             }
             return kj::Promise<void>(kj::READY_NOW);
           })
        .catch_([](kj::Exception&& e) { refuseQuietly("list", e); });
  }

  kj::Promise<void> runtimes(RuntimesContext context) override {
    auto turn = services_.clock.turn("runtimes");
    return services_.runtimes.probeAll()
        .then([this, context](kj::Array<runtimes::Probe>&& probes) mutable {
          auto& all = services_.runtimes.all();
          auto out = context.getResults().initRuntimes(static_cast<uint>(all.size()));
          auto& byDefault = services_.runtimes.byDefault();
          for (uint i = 0; i < all.size(); ++i) {
            write(out[i], *all[i], probes[i], byDefault == all[i]->name());
          }
          auto& profiles = services_.profiles;
          auto list = context.getResults().initProfiles(static_cast<uint>(profiles.size()));
          for (uint i = 0; i < profiles.size(); ++i) write(list[i], profiles[i]);
        })
        .catch_([](kj::Exception&& e) { refuseQuietly("runtimes", e); });
  }

  kj::Promise<void> snapshots(SnapshotsContext context) override {
    auto turn = services_.clock.turn("snapshots");
    return kj::evalNow([&]() {
             if (services_.snapshots == nullptr) return kj::Promise<void>(kj::READY_NOW);
             auto own = services_.snapshots->of(context.getParams().getOwner().getUid());
             auto out = context.getResults().initSnapshots(static_cast<uint>(own.size()));
             for (uint i = 0; i < own.size(); ++i) write(out[i], *own[i]);
             return kj::Promise<void>(kj::READY_NOW);
           })
        .catch_([](kj::Exception&& e) { refuseQuietly("snapshots", e); });
  }

  kj::Promise<void> deleteSnapshot(DeleteSnapshotContext context) override {
    return guarded(services_.clock, "deleteSnapshot", context, [&]() -> kj::Promise<void> {
      auto params = context.getParams();
      kj::Maybe<Failure> failed =
          failure(rpc::Reason::NO_SUCH_SNAPSHOT, "there are no snapshots here");
      if (services_.snapshots != nullptr) {
        failed = services_.snapshots->remove(params.getOwner().getUid(), params.getName(),
                                             params.getToken());
      }
      auto status = context.getResults().initStatus();
      KJ_IF_MAYBE (why, failed) {
        write(status, *why);
      } else {
        writeOk(status);
      }
      return kj::READY_NOW;
    });
  }

 private:
  static Failure noSuchSandbox() {
    return failure(rpc::Reason::NO_SUCH_SANDBOX, "no such sandbox of yours");
  }

  // These two have no status: the peer learns that it failed and nothing else.
  [[noreturn]] static void refuseQuietly(const char* operation, const kj::Exception& e) {
    fault(operation, e);
    kj::throwFatalException(kj::Exception(kj::Exception::Type::FAILED, "", 0,
                                          kj::str("the broker failed; its log says why")));
  }

  rpc::Sandbox::Client port(kj::Own<Sandbox> sandbox) {
    return makeSandboxPort(services_, destruction_, kj::mv(sandbox), kj::addRef(*peer_));
  }

  Services& services_;
  Registry& registry_;
  Creation& creation_;
  Destruction& destruction_;
  kj::Own<PeerScope> peer_;
};
}  // namespace

rpc::AgentPort::Client makeAgentPort(Services& services, Registry& registry, Creation& creation,
                                     Destruction& destruction, kj::Own<PeerScope> peer) {
  return kj::heap<AgentPort>(services, registry, creation, destruction, kj::mv(peer));
}

}  // namespace cordon::broker
