#include "broker/main/creation.h"

#include <capnp/message.h>
#include <errno.h>
#include <kj/debug.h>
#include <kj/vector.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>

#include "broker/main/agent_config.h"
#include "broker/main/identity.h"
#include "broker/main/snapshots.h"
#include "ipc/agent_ids.h"

namespace cordon::broker {

namespace {
constexpr auto kAgentGreets = 10 * kj::SECONDS;

int64_t milliseconds(clockid_t clock) {
  timespec t{};
  clock_gettime(clock, &t);
  return int64_t{t.tv_sec} * 1000 + t.tv_nsec / 1'000'000;
}

std::string describe(const ExitStatus& status) {
  return (status.signaled ? "was killed by signal " : "ended with status ") +
         std::to_string(status.code);
}

// Resolves to true when a byte can be read, to false at EOF. The byte's value
// is nobody's business here.
kj::Promise<bool> readable(kj::UnixEventPort::FdObserver& observer, int fd) {
  char byte;
  ssize_t n = recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  if (n >= 0) return n > 0;
  int error = errno;
  if (error == ECONNRESET) return false;
  if (error != EAGAIN && error != EINTR) KJ_FAIL_SYSCALL("recv(MSG_PEEK)", error);
  return observer.whenBecomesReadable().then([&observer, fd]() { return readable(observer, fd); });
}
}  // namespace

runtimes::CreateRequest requestOf(Sandbox& sandbox) {
  runtimes::CreateRequest request;
  request.name = sandbox.name();
  request.hostname = sandbox.spec.hostname.empty() ? sandbox.name() : sandbox.spec.hostname;
  request.directory = sandbox.entry.directory;
  request.image = sandbox.image.get();
  request.limits = sandbox.spec.limits;
  request.explain = sandbox.spec.explain;
  request.ids = sandbox.ids();
  KJ_IF_MAYBE (cgroups, sandbox.cgroups) {
    request.cgroups = cgroups->get();
  }
  return request;
}

struct Creation::Job {
  kj::Own<Sandbox> sandbox;
  kj::Own<PeerScope> peer;
  std::string token;
  kj::Maybe<SnapshotRecord> snapshot;
  StepTimes times;
};

Creation::Creation(Services& services, Registry& registry, Destruction& destruction)
    : services_(services), registry_(registry), destruction_(destruction), tasks_(*this) {}

kj::Promise<kj::OneOf<Created, Failure>> Creation::create(uint32_t owner,
                                                          rpc::SandboxSpec::Reader asked,
                                                          kj::Own<PeerScope> peer,
                                                          bool whileConnected) {
  using Answer = kj::OneOf<Created, Failure>;
  if (stopping_) return Answer(failure(rpc::Reason::SHUTTING_DOWN, "the broker is stopping"));
  capnp::MallocMessageBuilder filledIn;
  kj::Maybe<SnapshotRecord> snapshot;
  if (asked.getSnapshot().size() > 0) {
    auto found = findSnapshot(owner, asked.getSnapshot());
    if (found.is<Failure>()) return Answer(kj::mv(found.get<Failure>()));
    filledIn.setRoot(asked);
    auto whole = filledIn.getRoot<rpc::SandboxSpec>();
    KJ_IF_MAYBE (refused, Snapshots::complete(whole, found.get<SnapshotRecord>())) {
      return Answer(kj::mv(*refused));
    }
    asked = whole.asReader();
    snapshot = kj::mv(found.get<SnapshotRecord>());
  }
  auto spec = validateSpec(asked, services_.ceilings);
  if (spec.is<Failure>()) return Answer(spec.get<Failure>());
  KJ_IF_MAYBE (full, registry_.admit(owner)) {
    return Answer(*full);
  }

  auto job = kj::heap<Job>();
  job->peer = kj::mv(peer);
  job->snapshot = kj::mv(snapshot);
  job->sandbox = kj::refcounted<Sandbox>(services_.timer.now());
  auto& sandbox = *job->sandbox;
  if (whileConnected) sandbox.keeper = kj::addRef(*job->peer);
  sandbox.spec = kj::mv(spec.get<ValidSpec>());
  if (sandbox.spec.runtime.empty()) sandbox.spec.runtime = services_.runtimes.byDefault();
  do {
    sandbox.entry.name = newSandboxName();
  } while (registry_.contains(sandbox.entry.name));
  sandbox.entry.ownerUid = owner;
  sandbox.entry.runtime = sandbox.spec.runtime;
  sandbox.entry.createdUnixMs = milliseconds(CLOCK_REALTIME);
  sandbox.entry.createdBootMs = static_cast<uint64_t>(milliseconds(CLOCK_BOOTTIME));
  sandbox.entry.limits = sandbox.spec.limits;
  sandbox.entry.ttlMs = static_cast<uint64_t>(sandbox.spec.ttl / kj::MILLISECONDS);
  sandbox.entry.idleMs = static_cast<uint64_t>(sandbox.spec.idle / kj::MILLISECONDS);
  sandbox.entry.directory = services_.sandboxesDirectory + "/" + sandbox.entry.name;
  registry_.insert(kj::addRef(sandbox));

  auto paf = kj::newPromiseAndFulfiller<Answer>();
  tasks_.add(run(kj::mv(job)).then([fulfiller = kj::mv(paf.fulfiller)](Answer&& answer) mutable {
    fulfiller->fulfill(kj::mv(answer));
  }));
  return kj::mv(paf.promise);
}

kj::OneOf<SnapshotRecord, Failure> Creation::findSnapshot(uint32_t owner,
                                                          const std::string& id) const {
  if (services_.snapshots != nullptr) return services_.snapshots->find(owner, id);
  return failure(rpc::Reason::NO_SUCH_SNAPSHOT, "there are no snapshots here");
}

kj::Promise<kj::OneOf<Created, Failure>> Creation::run(kj::Own<Job> owned) {
  using Answer = kj::OneOf<Created, Failure>;
  auto& job = *owned;
  return kj::evalNow([&]() { return runFrom(job, 0); })
      .catch_([](kj::Exception&& exception) -> Result { return fault("create", exception); })
      .then([this, &job](Result failed) -> kj::Promise<Answer> {
        auto& sandbox = *job.sandbox;
        if (failed == nullptr && !job.peer->connected) {
          failed = failure(rpc::Reason::NONE, "the frontend disconnected");
        }
        KJ_IF_MAYBE (why, failed) {
          spdlog::warn("{}: not created, owner {}, {}: {} {}; ms: {}", sandbox.name(),
                       sandbox.entry.ownerUid, sandbox.entry.runtime, why->subject, why->detail,
                       job.times.text());
          return destruction_.destroy(sandbox, "not created")
              .then(
                  [refused = kj::mv(*why)](Receipt&&) mutable { return Answer(kj::mv(refused)); });
        }
        spdlog::info("{}: ready, owner {}, {}; ms: {}", sandbox.name(), sandbox.entry.ownerUid,
                     sandbox.entry.runtime, job.times.text());
        return Answer(Created{kj::addRef(sandbox), job.token});
      })
      .attach(kj::mv(owned));
}

kj::Promise<Creation::Result> Creation::runFrom(Job& job, size_t step) {
  static constexpr struct {
    const char* name;
    Step run;
  } kSteps[] = {
      {"probe", &Creation::probe},
      {"image", &Creation::resolveImage},
      // Before the first effect: what is not in a record is not cleaned up by
      // the next broker.
      {"record", &Creation::record},
      {"directory", &Creation::makeDirectory},
      // Before the runtime: no process of the sandbox ever runs without limits.
      {"cgroups", &Creation::makeCgroups},
      // Queued before the agent exists, so that it finds its configuration at
      // its first read.
      {"control", &Creation::queueControl},
      {"runtime", &Creation::startRuntime},
      {"agent", &Creation::awaitAgent},
      // Before it is ready: nothing but the agent runs in it yet.
      {"restore", &Creation::restore},
      {"ready", &Creation::becomeReady},
  };
  if (step == std::size(kSteps)) return Result(nullptr);
  if (stopping_) return Result(failure(rpc::Reason::SHUTTING_DOWN, "the broker is stopping"));
  // A frontend that has gone takes its half-made sandboxes with it.
  if (!job.peer->connected) return Result(failure(rpc::Reason::NONE, "the frontend disconnected"));
  auto turn = services_.clock.turn(kSteps[step].name);
  // On its own: with UBSan, GCC 12 indexes with garbage inside the call.
  Step now = kSteps[step].run;
  return (this->*now)(job).then([this, &job, step](Result failed) {
    job.times.done(kSteps[step].name);
    if (failed != nullptr) return kj::Promise<Result>(kj::mv(failed));
    return runFrom(job, step + 1);
  });
}

kj::Promise<Creation::Result> Creation::probe(Job& job) {
  auto& sandbox = *job.sandbox;
  sandbox.runtime = services_.runtimes.find(sandbox.spec.runtime);
  if (sandbox.runtime == nullptr) {
    auto unknown = failure(rpc::Reason::UNKNOWN_RUNTIME, "no runtime of that name");
    unknown.subject = "runtime";
    return Result(kj::mv(unknown));
  }
  if (!sandbox.runtime->isSandbox() && !services_.allowHostRuntime) {
    auto refused = failure(rpc::Reason::RUNTIME_NOT_ALLOWED,
                           "`host` is no sandbox: only a private instance started with "
                           "--allow-host-runtime offers it");
    refused.subject = "runtime";
    return Result(kj::mv(refused));
  }
  KJ_IF_MAYBE (refused, chooseProfile(sandbox)) {
    return Result(kj::mv(*refused));
  }
  if (sandbox.spec.limits.rootBytes != 0 && !sandbox.runtime->canWriteRoot()) {
    auto refused = failure(rpc::Reason::UNSUPPORTED,
                           sandbox.entry.runtime + " has no writable root; jail has one");
    refused.subject = "rootBytes";
    return Result(kj::mv(refused));
  }
  return services_.runtimes.probe(*sandbox.runtime).then([this, &sandbox](runtimes::Probe&& p) {
    if (!p.available) {
      return Result(failure(rpc::Reason::RUNTIME_UNAVAILABLE, kj::mv(p.reason)));
    }
    if (sandbox.runtime->needsCgroups() && services_.cgroups.mode() == CgroupMode::kNone) {
      return Result(failure(rpc::Reason::RUNTIME_UNAVAILABLE, services_.cgroups.whyNone()));
    }
    return Result(nullptr);
  });
}

Creation::Result Creation::chooseProfile(Sandbox& sandbox) {
  auto refuse = [](rpc::Reason reason, std::string detail) {
    auto refused = failure(reason, std::move(detail));
    refused.subject = "seccomp";
    return Result(kj::mv(refused));
  };
  auto& asked = sandbox.spec.seccomp;
  if (!sandbox.runtime->isSandbox()) {
    if (sandbox.spec.explain) {
      auto refused = failure(rpc::Reason::UNSUPPORTED,
                             sandbox.entry.runtime + " refuses no call: there is nothing to list");
      refused.subject = "explain";
      return Result(kj::mv(refused));
    }
    if (asked.empty()) return nullptr;
    return refuse(rpc::Reason::SECCOMP_NOT_APPLIED,
                  sandbox.entry.runtime + " is no sandbox and puts no seccomp profile on programs");
  }
  std::string names;
  for (auto& profile : services_.profiles) {
    if (profile.name == (asked.empty() ? kDefaultProfile : asked)) sandbox.profile = &profile;
    names += (names.empty() ? "" : ", ") + profile.name;
  }
  if (sandbox.profile != nullptr) return nullptr;
  return refuse(rpc::Reason::UNKNOWN_SECCOMP_PROFILE,
                "no seccomp profile of that name; there are: " + names);
}

kj::Promise<Creation::Result> Creation::resolveImage(Job& job) {
  auto& sandbox = *job.sandbox;
  if (!sandbox.runtime->needsImage()) {
    if (sandbox.spec.image.empty()) return Result(nullptr);
    auto refused = failure(rpc::Reason::UNKNOWN_IMAGE, "this runtime takes no image");
    refused.subject = "image";
    return Result(kj::mv(refused));
  }
  return services_.images.resolve(sandbox.spec.image, sandbox.spec.limits.rootBytes != 0)
      .then([&sandbox, &job](auto&& answer) -> Result {
        if (answer.template is<runtimes::ImageRefusal>()) {
          auto& why = answer.template get<runtimes::ImageRefusal>();
          auto refused = failure(why.reason, why.detail);
          refused.subject = "image";
          return refused;
        }
        sandbox.image = answer.template get<std::shared_ptr<const runtimes::Image>>();
        sandbox.entry.image = sandbox.image->name;
        KJ_IF_MAYBE (snapshot, job.snapshot) {
          return Snapshots::mismatch(*sandbox.image, *snapshot);
        }
        return nullptr;
      });
}

kj::Promise<Creation::Result> Creation::record(Job& job) {
  auto& sandbox = *job.sandbox;
  job.token = newToken();
  if (sandbox.runtime->needsCgroups())
    sandbox.entry.cgroup = services_.cgroups.pathOf(sandbox.name());
  sandbox.entry.tokenHash = hashToken(job.token);
  return services_.ledger.open(sandbox.entry, sandbox.runtime->isSandbox())
      .then([&sandbox](Result refused) {
        sandbox.recorded = refused == nullptr;
        return refused;
      });
}

kj::Promise<Creation::Result> Creation::makeDirectory(Job& job) {
  auto& sandbox = *job.sandbox;
  auto& path = sandbox.entry.directory;
  if (mkdir(path.c_str(), 0711) < 0) {
    return Result(failure(rpc::Reason::HOST_LIMIT, "no directory for the sandbox", errno));
  }
  sandbox.directoryMade = true;
  return Result(nullptr);
}

kj::Promise<Creation::Result> Creation::makeCgroups(Job& job) {
  auto& sandbox = *job.sandbox;
  if (!sandbox.runtime->needsCgroups()) return Result(nullptr);
  // For a failure half way, also one that can't clean up after itself.
  sandbox.cgroups = services_.cgroups.adopt(sandbox.name(), sandbox.entry.cgroup);
  auto made = services_.cgroups.create(sandbox.name(), sandbox.spec.limits,
                                       sandbox.entry.idFirst + ipc::kAgentUid);
  if (made.is<LimitNotApplied>()) {
    auto& why = made.get<LimitNotApplied>();
    bool isAnothers = why.error == EEXIST && why.file == "mkdir";
    if (isAnothers) sandbox.cgroups = nullptr;
    auto refused = failure(rpc::Reason::LIMIT_NOT_APPLIED,
                           "the kernel did not take the limit as it was written", why.error);
    refused.subject = why.file;
    return Result(kj::mv(refused));
  }
  sandbox.cgroups = kj::mv(made.get<kj::Own<SandboxCgroups>>());
  return Result(nullptr);
}

kj::Promise<Creation::Result> Creation::queueControl(Job& job) {
  auto& sandbox = *job.sandbox;
  auto& control = *sandbox.control.emplace(kj::heap<ControlChannel>());
  SandboxCgroups* cgroups = nullptr;
  KJ_IF_MAYBE (made, sandbox.cgroups) {
    cgroups = made->get();
  }
  sandbox.execs = kj::heap<Execs>(services_.timer, services_.clock, sandbox.name(), cgroups,
                                  control, sandbox.spec.limits, services_.leaves);
  if (sandbox.keeper != nullptr) KJ_ASSERT_NONNULL(sandbox.execs)->expectOne();

  capnp::MallocMessageBuilder message;
  writeAgentConfig(message.initRoot<guest::AgentConfig>(),
                   {sandbox.spec, *sandbox.runtime, sandbox.image.get(), cgroups, sandbox.name(),
                    sandbox.entry.directory});
  kj::Vector<int> filters;
  if (sandbox.profile != nullptr && sandbox.profile->bpf >= 0) filters.add(sandbox.profile->bpf);
  if (sandbox.spec.explain && sandbox.runtime->agentLoadsAskingFilter()) {
    filters.add(services_.askingAgentFilter);
  }
  auto stream = ipc::socketPair(SOCK_STREAM | SOCK_NONBLOCK);
  if (control.sendConfig(message, filters) != ipc::SendResult::kSent ||
      control.sendStream(stream.b.get()) != ipc::SendResult::kSent) {
    return Result(failure(rpc::Reason::HOST_LIMIT, "the control socket takes no message"));
  }
  sandbox.readyStream = kj::mv(stream.a);
  return Result(nullptr);
}

kj::Promise<Creation::Result> Creation::startRuntime(Job& job) {
  auto& sandbox = *job.sandbox;
  auto request = requestOf(sandbox);
  request.control = KJ_ASSERT_NONNULL(sandbox.control)->takeAgentEnd();
  request.willRestore = job.snapshot != nullptr;
  sandbox.whyNoCore =
      sandbox.runtime->isSandbox() ? services_.whyNoCoreScheduling() : "it is no sandbox";
  request.ownCore = sandbox.whyNoCore.empty();
  sandbox.runtimeUsed = true;
  return sandbox.runtime->create(kj::mv(request)).then([&job, &sandbox](auto&& answer) -> Result {
    if (answer.template is<runtimes::CreateFailure>()) {
      auto& why = answer.template get<runtimes::CreateFailure>();
      return failure(why.reason, why.detail, why.error);
    }
    auto& started = answer.template get<runtimes::Started>();
    for (auto& [name, ns] : started.steps) job.times.part(sandbox.entry.runtime + "/" + name, ns);
    sandbox.init = kj::mv(started.init);
    sandbox.namespaces = started.namespaces;
    sandbox.layers = kj::mv(started.layers);
    sandbox.core = started.core;
    if (sandbox.whyNoCore.empty() && sandbox.core.value == 0) {
      return failure(rpc::Reason::RUNTIME_FAILED, "the sandbox has no core scheduling cookie");
    }
    return nullptr;
  });
}

kj::Promise<Creation::Result> Creation::awaitAgent(Job& job) {
  auto& sandbox = *job.sandbox;
  auto& init = *KJ_ASSERT_NONNULL(sandbox.init);
  int fd = sandbox.readyStream.get();
  auto observer = kj::heap<kj::UnixEventPort::FdObserver>(
      services_.port, fd, kj::UnixEventPort::FdObserver::OBSERVE_READ);
  auto greeted = readable(*observer, fd).then([&init](bool data) -> kj::Promise<Result> {
    if (data) return Result(nullptr);
    // EOF: it is ending; how is the next thing to happen.
    return init.onExit().then([](ExitStatus&& status) {
      return Result(failure(rpc::Reason::RUNTIME_FAILED, "the agent " + describe(status)));
    });
  });
  auto ended = init.onExit().then([](ExitStatus&& status) {
    return Result(failure(rpc::Reason::RUNTIME_FAILED, "the agent " + describe(status)));
  });
  auto late = services_.timer.afterDelay(kAgentGreets).then([]() {
    return Result(failure(rpc::Reason::RUNTIME_TIMEOUT, "the agent did not greet in time"));
  });
  // The observer goes before the fd does.
  return greeted.exclusiveJoin(kj::mv(ended)).exclusiveJoin(kj::mv(late)).attach(kj::mv(observer));
}

kj::Promise<Creation::Result> Creation::restore(Job& job) {
  KJ_IF_MAYBE (snapshot, job.snapshot) {
    // It takes its time, and is given up when the broker stops.
    return services_.snapshots->restore(*job.sandbox, *snapshot)
        .exclusiveJoin(stops_.addBranch().then([]() -> Result {
          return failure(rpc::Reason::SHUTTING_DOWN, "the broker is stopping");
        }));
  }
  return Result(nullptr);
}

kj::Promise<Creation::Result> Creation::becomeReady(Job& job) {
  auto& sandbox = *job.sandbox;
  sandbox.entry.state = rpc::SandboxState::READY;
  KJ_IF_MAYBE (refused, services_.ledger.update(sandbox.entry)) {
    return Result(kj::mv(*refused));
  }
  sandbox.watch = KJ_ASSERT_NONNULL(sandbox.init)
                      ->onExit()
                      .then([&sandbox](ExitStatus&& status) {
                        // destroy() takes this watch away: it was not asked to.
                        sandbox.entry.state = rpc::SandboxState::LOST;
                        spdlog::warn("{}: lost, its init {}", sandbox.name(), describe(status));
                      })
                      .eagerlyEvaluate([this](kj::Exception&& e) { taskFailed(kj::mv(e)); });
  auto& execs = *KJ_ASSERT_NONNULL(sandbox.execs);
  execs.onIdleChange([this, &sandbox]() { armExpiry(sandbox); });
  armExpiry(sandbox);
  return Result(nullptr);
}

void Creation::armExpiry(Sandbox& sandbox) {
  sandbox.expiry =
      expire(sandbox).eagerlyEvaluate([this](kj::Exception&& e) { taskFailed(kj::mv(e)); });
}

// Waits until the sandbox's time is up, as things stand; the start of an exec
// and the end of the last one arm it anew.
kj::Promise<void> Creation::expire(Sandbox& sandbox) {
  auto& execs = *KJ_ASSERT_NONNULL(sandbox.execs);
  auto end = sandbox.created + sandbox.spec.ttl;
  const char* why = "time to live";
  if (execs.running() == 0 && execs.idleSince() + sandbox.spec.idle < end) {
    end = execs.idleSince() + sandbox.spec.idle;
    why = "idle limit";
  }
  return services_.timer.atTime(end).then([this, &sandbox, why]() {
    // Later: destroying takes this promise away.
    tasks_.add(kj::evalLater([this, &sandbox, why]() {
                 return destruction_.destroy(sandbox, why).ignoreResult();
               }).attach(kj::addRef(sandbox)));
  });
}

kj::Promise<void> Creation::stop() {
  stopping_ = true;
  stop_.fulfiller->fulfill();
  return tasks_.onEmpty();
}

void Creation::taskFailed(kj::Exception&& exception) {
  fault("create", exception);
}

}  // namespace cordon::broker
