// Creation, Destruction and Execs against test doubles of what is below them:
// the order of effects, the undoing of each failure, and what is shared. The
// real things are in broker_test.cc and broker_runc_test.cc.
#include <capnp/message.h>
#include <gtest/gtest.h>
#include <kj/async-io.h>
#include <kj/debug.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "broker/main/creation.h"
#include "broker/main/destruction.h"
#include "broker/main/info.h"
#include "broker/main/sandbox_port.h"
#include "ipc/control.h"
#include "ipc/fdpass.h"

namespace cordon::broker {
namespace {

// What happened, in order, and what is to go wrong.
struct Script {
  std::vector<std::string> log;
  bool ledgerRefuses = false;
  bool limitDiffers = false;
  bool createFails = false;
  bool isSandbox = true;
  bool createThrows = false;
  bool agentSilent = false;  // never greets
  bool agentCloses = false;  // closes its stream and ends
  bool cgroupsThrow = false;
  bool outOfDescriptors = false;
  bool nameTaken = false;
  int killThrows = 0;
  bool memoryTight = false;
  int killPasses = 1;    // until a sandbox is empty
  int removePasses = 1;  // until its cgroups are gone
  uint64_t cpuUsageUs = 0;
  bool leafFull = false;
  kj::Own<kj::PromiseFulfiller<void>> held;  // create() waits for it
  bool holdCreate = false;

  void say(std::string what) { log.push_back(std::move(what)); }
  size_t at(const std::string& what) const {
    return static_cast<size_t>(std::find(log.begin(), log.end(), what) - log.begin());
  }
  size_t count(const std::string& what) const {
    return static_cast<size_t>(std::count(log.begin(), log.end(), what));
  }
};

class ChildDouble final : public Child {
 public:
  explicit ChildDouble(Script& script) : script_(script) {
    auto paf = kj::newPromiseAndFulfiller<ExitStatus>();
    end_ = kj::mv(paf.fulfiller);
    ended_ = paf.promise.fork();
  }
  pid_t pid() const override { return 12345; }
  bool signal(int signo) override {
    script_.say("init.kill");
    finish({true, signo});
    return true;
  }
  kj::Promise<ExitStatus> onExit() override { return KJ_ASSERT_NONNULL(ended_).addBranch(); }
  kj::Maybe<ExitStatus> exited() const override { return status_; }
  void finish(ExitStatus status) {
    if (status_ != nullptr) return;
    status_ = status;
    end_->fulfill(kj::mv(status));
  }

 private:
  Script& script_;
  kj::Own<kj::PromiseFulfiller<ExitStatus>> end_;
  kj::Maybe<kj::ForkedPromise<ExitStatus>> ended_;
  kj::Maybe<ExitStatus> status_;
};

class LeafDouble final : public ExecLeaf {
 public:
  LeafDouble(Script& script, uint32_t number) : script_(script), number_(number) {}
  std::vector<int> agentFds() const override { return {}; }
  Counters read() override {
    return {{rpc::CounterKind::CPU_USAGE_US, rpc::Scope::EXEC, script_.cpuUsageUs, "cpu"}};
  }
  uint64_t cpuUsageUs() override { return script_.cpuUsageUs; }
  bool populated() override { return script_.leafFull; }
  bool killPass() override {
    KJ_REQUIRE(!removed_, "kill pass over a leaf that is gone");
    if (script_.killThrows > 0) {
      --script_.killThrows;
      KJ_FAIL_SYSCALL("pidfd_open", EMFILE);
    }
    script_.say("leaf.kill");
    if (--script_.killPasses > 0) return false;
    script_.leafFull = false;
    return true;
  }
  void renew() override { script_.say("leaf.renew " + std::to_string(number_)); }
  bool remove() override {
    if (script_.leafFull) return false;
    script_.say("leaf.remove " + std::to_string(number_));
    return removed_ = true;
  }

 private:
  Script& script_;
  uint32_t number_;
  bool removed_ = false;
};

class CgroupsDouble final : public SandboxCgroups {
 public:
  explicit CgroupsDouble(Script& script) : script_(script) {}
  CgroupMode mode() const override { return CgroupMode::kV1; }
  const std::string& path() const override { return path_; }
  kj::Own<ExecLeaf> createExec(uint32_t number) override {
    script_.say("leaf.create " + std::to_string(number));
    return kj::heap<LeafDouble>(script_, number);
  }
  bool memoryTight() override { return script_.memoryTight; }
  Counters read() override { return {}; }
  bool killPass() override {
    script_.say("cgroups.kill");
    return --script_.killPasses <= 0;
  }
  std::vector<LeftOver> removePass() override {
    if (--script_.removePasses > 0) return {{"cgroup", path_, EBUSY}};
    script_.say("cgroups.remove");
    return {};
  }
  std::vector<std::string> directories() const override { return {path_}; }
  int namespaceFd() const override { return -1; }

 private:
  Script& script_;
  std::string path_ = "/cordon/test/double";
};

class TreeDouble final : public CgroupTree {
 public:
  explicit TreeDouble(Script& script) : script_(script) {}
  CgroupMode mode() const override { return CgroupMode::kV1; }
  std::string whyNone() const override { return ""; }
  std::string describe() const override { return "a test double"; }
  kj::OneOf<kj::Own<SandboxCgroups>, LimitNotApplied> create(const std::string&,
                                                             const ResolvedLimits&,
                                                             uint32_t) override {
    if (script_.nameTaken) return LimitNotApplied{"mkdir", EEXIST};
    script_.say("cgroups.create");
    if (script_.outOfDescriptors) KJ_FAIL_SYSCALL("openat2", EMFILE);
    KJ_REQUIRE(!script_.cgroupsThrow, "as the test wants");
    if (script_.limitDiffers) return LimitNotApplied{"memory.limit_in_bytes", 0};
    return kj::Own<SandboxCgroups>(kj::heap<CgroupsDouble>(script_));
  }
  kj::Own<SandboxCgroups> adopt(const std::string&, const std::string&) override {
    return kj::heap<CgroupsDouble>(script_);
  }
  std::string pathOf(const std::string& name) const override { return "/cordon/test/" + name; }
  std::vector<std::string> names() override { return {}; }
  bool removeInstance() override { return true; }

 private:
  Script& script_;
};

class LedgerDouble final : public Ledger {
 public:
  explicit LedgerDouble(Script& script) : script_(script) {}
  kj::Maybe<Failure> open(SandboxRecord& record, bool wantIds) override {
    if (script_.ledgerRefuses) return failure(rpc::Reason::ID_RANGES_EXHAUSTED, "none left");
    script_.say("ledger.open");
    EXPECT_EQ(wantIds, script_.isSandbox);
    record.idFirst = 65536;
    record.idCount = 65536;
    return nullptr;
  }
  kj::Maybe<Failure> update(const SandboxRecord& record) override {
    script_.say("ledger.update " + std::to_string(record.left.size()));
    return nullptr;
  }
  std::vector<LeftOver> close(const SandboxRecord&) override {
    script_.say("ledger.close");
    return {};
  }
  std::vector<Records::Found> findings() override { return {}; }

 private:
  Script& script_;
};

class ImagesDouble final : public runtimes::ImageStore {
 public:
  kj::Promise<kj::OneOf<std::shared_ptr<const runtimes::Image>, runtimes::ImageRefusal>> resolve(
      std::string name, bool) override {
    using Answer = kj::OneOf<std::shared_ptr<const runtimes::Image>, runtimes::ImageRefusal>;
    if (name == "none") {
      return Answer(runtimes::ImageRefusal{rpc::Reason::UNKNOWN_IMAGE, "no such image"});
    }
    auto image = std::make_shared<runtimes::Image>();
    image->name = "double";
    return Answer(std::shared_ptr<const runtimes::Image>(image));
  }
  void removeAll() override {}
};

// Greets on the first stream that comes over the control socket, as vm-agent.
class RuntimeDouble final : public runtimes::Runtime {
 public:
  explicit RuntimeDouble(Script& script) : script_(script) {}
  const char* name() const override { return "runc"; }
  bool isSandbox() const override { return script_.isSandbox; }
  bool needsCgroups() const override { return true; }
  bool needsImage() const override { return true; }
  kj::Promise<runtimes::Probe> probe() override {
    runtimes::Probe yes;
    yes.available = true;
    return yes;
  }
  kj::Promise<kj::OneOf<runtimes::Started, runtimes::CreateFailure>> create(
      runtimes::CreateRequest request) override {
    script_.say("runtime.create");
    KJ_REQUIRE(!script_.createThrows, "as the test wants");
    control = kj::mv(request.control);
    kj::Promise<void> ready = kj::READY_NOW;
    if (script_.holdCreate) {
      auto paf = kj::newPromiseAndFulfiller<void>();
      script_.held = kj::mv(paf.fulfiller);
      ready = kj::mv(paf.promise);
    }
    return ready.then([this]() { return started(); });
  }
  std::vector<LeftOver> cleanup(const std::string&, const std::string&) override {
    script_.say("runtime.cleanup");
    return {};
  }
  std::string isolation() const override { return "a test double"; }

  kj::AutoCloseFd control;
  std::vector<kj::AutoCloseFd> streams;
  ChildDouble* init = nullptr;

 private:
  kj::OneOf<runtimes::Started, runtimes::CreateFailure> started() {
    if (script_.createFails) {
      return runtimes::CreateFailure{rpc::Reason::RUNTIME_FAILED, "status 7", 0};
    }
    readControl();
    auto child = kj::heap<ChildDouble>(script_);
    init = child.get();
    if (script_.agentCloses) {
      streams.clear();
      child->finish({false, 9});
    }
    runtimes::Started result;
    result.init = kj::mv(child);
    return kj::mv(result);
  }

  void readControl() {
    kj::byte buffer[4096];
    for (;;) {
      auto received = ipc::receiveWithFds(control.get(), buffer, 8);
      KJ_IF_MAYBE (datagram, received) {
        if (datagram->bytes == 0) return;
        ipc::ControlHeader header;
        memcpy(&header, buffer, sizeof(header));
        script_.say("control " + std::to_string(static_cast<uint32_t>(header.kind)));
        if (header.kind != ipc::ControlKind::kStream) continue;
        KJ_REQUIRE(datagram->fds.size() == 1);
        if (!script_.agentSilent) {
          KJ_SYSCALL(send(datagram->fds[0].get(), "h", 1, 0));
        }
        streams.push_back(kj::mv(datagram->fds[0]));
      } else {
        return;
      }
    }
  }

  Script& script_;
};

class LifecycleTest : public ::testing::Test {
 public:
  LifecycleTest() {
    char name[] = "/tmp/cordon-lifecycle-XXXXXX";
    KJ_REQUIRE(mkdtemp(name) != nullptr);
    directory = name;
    services.sandboxesDirectory = directory;
    runtime = static_cast<RuntimeDouble*>(runtimes.all()[0].get());
  }
  ~LifecycleTest() noexcept override { rmdir(directory.c_str()); }

 protected:
  static std::vector<kj::Own<runtimes::Runtime>> doubles(Script& script) {
    std::vector<kj::Own<runtimes::Runtime>> result;
    result.push_back(kj::heap<RuntimeDouble>(script));
    return result;
  }

  using Answer = kj::OneOf<Created, Failure>;
  kj::Promise<Answer> create() {
    auto spec = message.initRoot<rpc::SandboxSpec>();
    spec.initLimits().setMemoryBytes(64 << 20);
    spec.setImage(image);
    spec.setSeccomp(seccomp);
    return creation.create(7, spec, kj::addRef(*peer), false);
  }
  Answer created() { return create().wait(io.waitScope); }

  // Refused for that reason, and nothing of it is left.
  void refusesAndUndoes(rpc::Reason reason) {
    auto answer = created();
    ASSERT_TRUE(answer.is<Failure>());
    EXPECT_EQ(answer.get<Failure>().reason, reason);
    EXPECT_EQ(registry.size(), 0u);
    EXPECT_EQ(rmdir(directory.c_str()), 0) << "a sandbox's directory is left";
    EXPECT_EQ(mkdir(directory.c_str(), 0700), 0);
    EXPECT_EQ(script.count("ledger.open"), script.count("ledger.close"));
    EXPECT_EQ(script.count("cgroups.create"), script.count("cgroups.remove"));
    EXPECT_EQ(script.count("runtime.create"), script.count("runtime.cleanup"));
  }

  Script script;
  std::string directory;
  std::string image;
  std::string seccomp;
  capnp::MallocMessageBuilder message;
  kj::AsyncIoContext io = kj::setupAsyncIo();
  TurnClock clock;
  Children children{io.unixEventPort};
  TreeDouble tree{script};
  LedgerDouble ledger{script};
  ImagesDouble images;
  RuntimeSet runtimes{doubles(script), "runc"};
  RuntimeDouble* runtime = nullptr;
  Services services{io.unixEventPort,
                    io.unixEventPort.getTimer(),
                    clock,
                    children,
                    tree,
                    ledger,
                    images,
                    runtimes,
                    Ceilings::ofThisHost(),
                    {{"default", -1, 298, 373}, {"tuned", -1, 70, 373}},
                    "",
                    false};
  Registry registry{4, 4};
  Destruction destruction{services, registry};
  Creation creation{services, registry, destruction};
  kj::Own<PeerScope> peer = kj::refcounted<PeerScope>(1, 0);
};

TEST_F(LifecycleTest, TheProfileIsTheOneAskedFor) {
  for (const char* name : {"", "default", "tuned"}) {
    seccomp = name;
    auto answer = created();
    ASSERT_TRUE(answer.is<Created>());
    auto& sandbox = *answer.get<Created>().sandbox;
    ASSERT_NE(sandbox.profile, nullptr);
    EXPECT_EQ(sandbox.profile->name, seccomp.empty() ? "default" : seccomp);
    capnp::MallocMessageBuilder told;
    auto info = told.initRoot<rpc::SandboxInfo>();
    write(info, sandbox, io.unixEventPort.getTimer().now(), false);
    EXPECT_EQ(std::string(info.getSeccomp().getName().cStr()), sandbox.profile->name);
    EXPECT_EQ(info.getSeccomp().getCalls(), sandbox.profile->calls);
    if (seccomp == "tuned") {
      EXPECT_EQ(std::string(info.getIsolation().cStr()),
                "a test double, seccomp tuned (70 of 373 calls)");
    }
    destruction.destroy(sandbox, "test").wait(io.waitScope);
  }
}

TEST_F(LifecycleTest, AnUnknownProfileIsRefusedWithTheNamesThereAre) {
  seccomp = "unconfined";
  auto answer = created();
  ASSERT_TRUE(answer.is<Failure>());
  auto& why = answer.get<Failure>();
  EXPECT_EQ(why.code, rpc::Code::INVALID_ARGUMENT);
  EXPECT_EQ(why.reason, rpc::Reason::UNKNOWN_SECCOMP_PROFILE);
  EXPECT_EQ(why.subject, "seccomp");
  EXPECT_NE(why.detail.find("default, tuned"), std::string::npos) << why.detail;
  EXPECT_EQ(script.count("ledger.open"), 0u);
  seccomp = "a b";
  auto malformed = created();
  ASSERT_TRUE(malformed.is<Failure>());
  EXPECT_EQ(malformed.get<Failure>().reason, rpc::Reason::BAD_NAME);
}

TEST_F(LifecycleTest, WhatIsNoSandboxTakesNoProfile) {
  services.allowHostRuntime = true;
  script.isSandbox = false;
  seccomp = "default";
  auto answer = created();
  ASSERT_TRUE(answer.is<Failure>());
  EXPECT_EQ(answer.get<Failure>().reason, rpc::Reason::SECCOMP_NOT_APPLIED);
  seccomp = "";
  auto without = created();
  ASSERT_TRUE(without.is<Created>());
  auto& sandbox = *without.get<Created>().sandbox;
  EXPECT_EQ(sandbox.profile, nullptr);
  destruction.destroy(sandbox, "test").wait(io.waitScope);
}

TEST_F(LifecycleTest, TheRecordComesBeforeTheFirstEffectAndGoesAfterTheLast) {
  auto answer = created();
  ASSERT_TRUE(answer.is<Created>());
  EXPECT_LT(script.at("ledger.open"), script.at("cgroups.create"));
  EXPECT_LT(script.at("cgroups.create"), script.at("runtime.create"));
  // Configuration first, then the stream that shows readiness.
  EXPECT_LT(script.at("control 1"), script.at("control 2"));
  auto& sandbox = *answer.get<Created>().sandbox;
  auto receipt = destruction.destroy(sandbox, "test").wait(io.waitScope);
  EXPECT_TRUE(receipt.complete);
  EXPECT_LT(script.at("init.kill"), script.at("cgroups.kill"));
  EXPECT_LT(script.at("cgroups.kill"), script.at("runtime.cleanup"));
  EXPECT_LT(script.at("runtime.cleanup"), script.at("cgroups.remove"));
  EXPECT_LT(script.at("cgroups.remove"), script.at("ledger.close"));
  EXPECT_EQ(script.log.back(), "ledger.close");
  EXPECT_EQ(registry.size(), 0u);
}

TEST_F(LifecycleTest, ARefusedLedgerHasNoEffect) {
  script.ledgerRefuses = true;
  refusesAndUndoes(rpc::Reason::ID_RANGES_EXHAUSTED);
  EXPECT_TRUE(script.log.empty());
}

TEST_F(LifecycleTest, AnUnknownImageHasNoEffect) {
  image = "none";
  refusesAndUndoes(rpc::Reason::UNKNOWN_IMAGE);
  EXPECT_TRUE(script.log.empty());
}

TEST_F(LifecycleTest, ALimitThatDoesNotHoldRefuses) {
  script.limitDiffers = true;
  refusesAndUndoes(rpc::Reason::LIMIT_NOT_APPLIED);
  EXPECT_EQ(script.count("runtime.create"), 0u);
}

TEST_F(LifecycleTest, AFaultIsUndoneAndItsTextStaysHere) {
  script.cgroupsThrow = true;
  auto answer = created();
  ASSERT_TRUE(answer.is<Failure>());
  EXPECT_EQ(answer.get<Failure>().code, rpc::Code::INTERNAL);
  EXPECT_EQ(answer.get<Failure>().detail.find("as the test wants"), std::string::npos);
  EXPECT_EQ(script.count("ledger.close"), 1u);
  EXPECT_EQ(registry.size(), 0u);
}

// What was made of the cgroups before it failed is removed, too.
TEST_F(LifecycleTest, WithoutDescriptorsItIsTheHostsLimit) {
  script.outOfDescriptors = true;
  refusesAndUndoes(rpc::Reason::HOST_LIMIT);
  EXPECT_EQ(script.count("cgroups.remove"), 1u);
}

TEST_F(LifecycleTest, CgroupsOfAnotherAreNotRemoved) {
  script.nameTaken = true;
  refusesAndUndoes(rpc::Reason::LIMIT_NOT_APPLIED);
  EXPECT_EQ(script.count("cgroups.remove"), 0u);
}

TEST_F(LifecycleTest, AFailingRuntimeIsUndone) {
  script.createFails = true;
  refusesAndUndoes(rpc::Reason::RUNTIME_FAILED);
}

TEST_F(LifecycleTest, AThrowingRuntimeIsUndone) {
  script.createThrows = true;
  refusesAndUndoes(rpc::Reason::NONE);
}

TEST_F(LifecycleTest, AnAgentThatEndsBeforeItGreetsIsUndone) {
  script.agentSilent = script.agentCloses = true;
  refusesAndUndoes(rpc::Reason::RUNTIME_FAILED);
}

TEST_F(LifecycleTest, AFrontendThatGoesMeanwhileTakesItAlong) {
  script.holdCreate = true;
  auto pending = create().eagerlyEvaluate(nullptr);
  while (script.held.get() == nullptr) kj::evalLater([] {}).wait(io.waitScope);
  peer->connected = false;
  script.held->fulfill();
  EXPECT_TRUE(pending.wait(io.waitScope).is<Failure>());
  EXPECT_EQ(registry.size(), 0u);
  EXPECT_EQ(script.count("ledger.close"), 1u);
}

TEST_F(LifecycleTest, ACallerThatDropsThePromiseDoesNotStopTheUndo) {
  script.holdCreate = script.createFails = true;
  {
    auto pending = create().eagerlyEvaluate(nullptr);
    while (script.held.get() == nullptr) kj::evalLater([] {}).wait(io.waitScope);
  }
  script.held->fulfill();
  creation.stop().wait(io.waitScope);
  EXPECT_EQ(registry.size(), 0u);
  EXPECT_EQ(script.count("ledger.close"), 1u);
}

TEST_F(LifecycleTest, StoppingUndoesWhatIsHalfMadeAndRefusesMore) {
  script.holdCreate = true;
  auto pending = create().eagerlyEvaluate(nullptr);
  while (script.held.get() == nullptr) kj::evalLater([] {}).wait(io.waitScope);
  auto stopped = creation.stop();
  script.held->fulfill();
  stopped.wait(io.waitScope);
  auto answer = pending.wait(io.waitScope);
  ASSERT_TRUE(answer.is<Failure>());
  EXPECT_EQ(answer.get<Failure>().reason, rpc::Reason::SHUTTING_DOWN);
  EXPECT_EQ(registry.size(), 0u);
  auto more = created();
  ASSERT_TRUE(more.is<Failure>());
  EXPECT_EQ(more.get<Failure>().reason, rpc::Reason::SHUTTING_DOWN);
}

TEST_F(LifecycleTest, WhatCannotBeRemovedIsNamedKeptAndRetried) {
  auto answer = created();
  ASSERT_TRUE(answer.is<Created>());
  auto sandbox = kj::mv(answer.get<Created>().sandbox);
  script.removePasses = 1'000'000;
  auto receipt = destruction.destroy(*sandbox, "test").wait(io.waitScope);
  EXPECT_FALSE(receipt.complete);
  ASSERT_EQ(receipt.left.size(), 1u);
  EXPECT_EQ(receipt.left[0].kind, "cgroup");
  EXPECT_EQ(receipt.left[0].error, EBUSY);
  for (auto& item : receipt.removed) EXPECT_NE(item.kind, "cgroup");
  EXPECT_EQ(script.log.back(), "ledger.update 1");
  EXPECT_EQ(script.count("ledger.close"), 0u);
  EXPECT_EQ(registry.size(), 1u);
  // The id range is still its own, and nobody can attach to it.
  EXPECT_TRUE(registry.attach(7, sandbox->name(), "") == nullptr);
  script.removePasses = 1;
  while (!sandbox->gone) {
    services.timer.afterDelay(10 * kj::MILLISECONDS).wait(io.waitScope);
  }
  EXPECT_EQ(script.count("ledger.close"), 1u);
  EXPECT_EQ(registry.size(), 0u);
}

TEST_F(LifecycleTest, ConcurrentDestroysAreOneAndALaterOneAnswersTheSame) {
  auto answer = created();
  ASSERT_TRUE(answer.is<Created>());
  auto sandbox = kj::mv(answer.get<Created>().sandbox);
  auto first = destruction.destroy(*sandbox, "one");
  auto second = destruction.destroy(*sandbox, "two");
  EXPECT_TRUE(first.wait(io.waitScope).complete);
  EXPECT_TRUE(second.wait(io.waitScope).complete);
  EXPECT_TRUE(destruction.destroy(*sandbox, "three").wait(io.waitScope).complete);
  EXPECT_EQ(script.count("ledger.close"), 1u);
}

TEST_F(LifecycleTest, AnInitThatDiesMakesItLost) {
  auto answer = created();
  ASSERT_TRUE(answer.is<Created>());
  auto sandbox = kj::mv(answer.get<Created>().sandbox);
  runtime->init->finish({true, 9});
  services.timer.afterDelay(1 * kj::MILLISECONDS).wait(io.waitScope);
  EXPECT_EQ(sandbox->entry.state, rpc::SandboxState::LOST);
  EXPECT_TRUE(destruction.destroy(*sandbox, "test").wait(io.waitScope).complete);
}

// ---- execs

class ExecsTest : public LifecycleTest {
 public:
  ~ExecsTest() noexcept override {}

 protected:
  Execs& execs() {
    if (sandbox.get() == nullptr) {
      auto answer = created();
      KJ_REQUIRE(answer.is<Created>());
      sandbox = kj::mv(answer.get<Created>().sandbox);
    }
    return *KJ_ASSERT_NONNULL(sandbox->execs);
  }
  uint32_t begin() {
    auto begun = execs().begin(0, *peer);
    KJ_REQUIRE(begun.is<Execs::Begun>());
    return begun.get<Execs::Begun>().number;
  }
  void TearDown() override {
    script.leafFull = false;
    script.killPasses = 1;
    if (sandbox.get() != nullptr) {
      EXPECT_TRUE(destruction.destroy(*sandbox, "test").wait(io.waitScope).complete);
    }
  }
  void pass(kj::Duration time) { services.timer.afterDelay(time).wait(io.waitScope); }

  kj::Own<Sandbox> sandbox;
};

TEST_F(ExecsTest, OthersAreCountedAtBeginAndUntilEnd) {
  auto first = execs().begin(0, *peer).get<Execs::Begun>();
  EXPECT_EQ(first.sharedWith, 0u);
  auto second = execs().begin(0, *peer).get<Execs::Begun>();
  EXPECT_EQ(second.sharedWith, 1u);
  EXPECT_EQ(execs().end(second.number).get<Execs::Ended>().sharedWith, 1u);
  EXPECT_EQ(execs().end(first.number).get<Execs::Ended>().sharedWith, 1u);
  EXPECT_EQ(execs().running(), 0u);
  EXPECT_EQ(execs().total(), 2u);
}

TEST_F(ExecsTest, ALeafWithProcessesIsKeptAndCountedUntilItEmpties) {
  uint32_t first = begin();
  script.leafFull = true;
  execs().end(first);
  EXPECT_EQ(execs().begin(0, *peer).get<Execs::Begun>().sharedWith, 1u);
  script.leafFull = false;
  EXPECT_EQ(script.count("leaf.remove 1"), 0u);
  // The second one still runs; the first one's leaf goes.
  EXPECT_EQ(execs().begin(0, *peer).get<Execs::Begun>().sharedWith, 1u);
  EXPECT_EQ(script.count("leaf.remove 1"), 1u);
}

TEST_F(ExecsTest, LeavesAreMadeInAdvanceAndTheirNamesUsedAgain) {
  for (unsigned i = 0; i < 20; ++i) {
    execs().end(begin());
    pass(1 * kj::MILLISECONDS);
  }
  // After each there is one in advance, and it is the same two names all along.
  EXPECT_EQ(script.count("leaf.create 1") + script.count("leaf.create 2"), 21u);
  EXPECT_EQ(script.count("leaf.remove 1") + script.count("leaf.remove 2"), 20u);
}

TEST_F(ExecsTest, ASandboxOfOneExecMakesNoLeafInAdvance) {
  execs().expectOne();
  execs().end(begin());
  pass(1 * kj::MILLISECONDS);
  EXPECT_EQ(script.count("leaf.create 1"), 1u);
  EXPECT_EQ(script.count("leaf.create 2"), 0u);
  EXPECT_EQ(script.count("leaf.remove 1"), 1u);
}

TEST_F(ExecsTest, WhereMemoryIsFullALeafIsUsedAgain) {
  uint32_t first = begin();
  pass(1 * kj::MILLISECONDS);  // 2 is made in advance
  script.memoryTight = true;
  execs().end(first);
  pass(1 * kj::MILLISECONDS);
  uint32_t second = begin();
  // Nothing can be made beside it, and nothing has been given up yet.
  auto refused = execs().begin(0, *peer);
  ASSERT_TRUE(refused.is<Failure>());
  EXPECT_EQ(refused.get<Failure>().reason, rpc::Reason::TOO_MANY_EXECS);
  for (int i = 0; i < 3; ++i) {
    execs().end(second);
    pass(1 * kj::MILLISECONDS);
    second = begin();
  }
  EXPECT_EQ(script.count("leaf.create 1") + script.count("leaf.create 2"), 2u);
  EXPECT_EQ(script.count("leaf.renew 2"), 3u);
  script.memoryTight = false;
  execs().end(second);
}

TEST_F(ExecsTest, InALeafThatIsUsedAgainCpuTimeBeginsAnew) {
  uint32_t first = begin();
  script.memoryTight = true;
  execs().end(first);
  pass(1 * kj::MILLISECONDS);
  script.cpuUsageUs = 70'000;  // the first one's
  auto limited = execs().begin(50, *peer).get<Execs::Begun>();
  ASSERT_EQ(script.count("leaf.renew 1"), 1u);
  script.leafFull = true;
  script.killPasses = 1;
  script.cpuUsageUs = 119'000;
  pass(60 * kj::MILLISECONDS);
  EXPECT_TRUE(script.leafFull);
  script.cpuUsageUs = 121'000;
  while (script.leafFull) pass(5 * kj::MILLISECONDS);
  EXPECT_EQ(execs().end(limited.number).get<Execs::Ended>().endedBy, rpc::ExecEnd::CPU_TIME);
}

TEST_F(ExecsTest, WhatAnExecLeftRunningHasItsCpuTimeStill) {
  auto limited = execs().begin(50, *peer).get<Execs::Begun>();
  script.leafFull = true;
  script.cpuUsageUs = 20'000;
  EXPECT_EQ(execs().end(limited.number).get<Execs::Ended>().endedBy, rpc::ExecEnd::RUNNING);
  pass(1 * kj::MILLISECONDS);
  EXPECT_TRUE(script.leafFull);
  script.killPasses = 2;
  script.cpuUsageUs = 60'000;
  while (script.leafFull) pass(5 * kj::MILLISECONDS);
  EXPECT_EQ(script.count("leaf.kill"), 2u);
}

TEST_F(ExecsTest, ALeafLeftOverKeepsItsName) {
  uint32_t first = begin();
  script.leafFull = true;
  execs().end(first);
  begin();
  EXPECT_EQ(script.count("leaf.create 1"), 1u);
  EXPECT_EQ(script.count("leaf.create 2"), 1u);
}

TEST_F(ExecsTest, LiveExecsAndLeavesLeftOverAreCapped) {
  std::vector<uint32_t> all;
  for (size_t i = 0; i < Execs::kMaxLive; ++i) all.push_back(begin());
  auto refused = execs().begin(0, *peer);
  ASSERT_TRUE(refused.is<Failure>());
  EXPECT_EQ(refused.get<Failure>().reason, rpc::Reason::TOO_MANY_EXECS);
  EXPECT_EQ(refused.get<Failure>().limit, Execs::kMaxLive);
  script.leafFull = true;
  for (auto number : all) execs().end(number);
  EXPECT_TRUE(execs().begin(0, *peer).is<Failure>());
  script.leafFull = false;
  EXPECT_TRUE(execs().begin(0, *peer).is<Execs::Begun>());
}

TEST_F(ExecsTest, LeavesOfAllSandboxesTogetherAreCapped) {
  execs();
  services.leaves.most = services.leaves.used + 2;
  uint32_t first = begin();
  begin();
  auto refused = execs().begin(0, *peer);
  ASSERT_TRUE(refused.is<Failure>());
  EXPECT_EQ(refused.get<Failure>().reason, rpc::Reason::HOST_LIMIT);
  execs().end(first);
  pass(1 * kj::MILLISECONDS);
  begin();
}

TEST_F(ExecsTest, AKillThatFailsIsTriedAgain) {
  uint32_t number = begin();
  script.leafFull = true;
  script.killPasses = 1;
  script.killThrows = 2;
  EXPECT_TRUE(execs().kill(number).wait(io.waitScope) == nullptr);
  EXPECT_EQ(script.killThrows, 0);
  EXPECT_FALSE(script.leafFull);
  EXPECT_EQ(execs().end(number).get<Execs::Ended>().endedBy, rpc::ExecEnd::KILLED);
}

TEST_F(ExecsTest, CpuTimeEndsAnExecAndOnlyThatOne) {
  auto limited = execs().begin(50, *peer).get<Execs::Begun>();
  uint32_t other = begin();
  script.leafFull = true;
  script.killPasses = 3;
  script.cpuUsageUs = 60'000;
  while (script.leafFull) pass(5 * kj::MILLISECONDS);
  EXPECT_EQ(execs().end(limited.number).get<Execs::Ended>().endedBy, rpc::ExecEnd::CPU_TIME);
  EXPECT_EQ(execs().end(other).get<Execs::Ended>().endedBy, rpc::ExecEnd::RUNNING);
  EXPECT_EQ(script.count("leaf.kill"), 3u);
}

TEST_F(ExecsTest, AWiderCpuTimeIsRefused) {
  execs();
  capnp::MallocMessageBuilder asked;
  auto limits = asked.initRoot<rpc::ExecLimits>();
  limits.setCpuTimeMs(uint64_t{1} << 40);
  auto refused = beginExec(*sandbox, *peer, limits, false);
  ASSERT_TRUE(refused.is<Failure>());
  EXPECT_EQ(refused.get<Failure>().reason, rpc::Reason::EXEC_LIMIT_TOO_WIDE);
  EXPECT_EQ(refused.get<Failure>().limit, sandbox->spec.limits.cpuTimeMs);
  EXPECT_EQ(execs().total(), 0u);
}

TEST_F(ExecsTest, AnEndDuringAKillIsSafeAndTheKillGoesOn) {
  uint32_t number = begin();
  script.leafFull = true;
  script.killPasses = 20;
  auto killed = execs().kill(number);
  pass(2 * kj::MILLISECONDS);
  EXPECT_EQ(execs().end(number).get<Execs::Ended>().endedBy, rpc::ExecEnd::KILLED);
  EXPECT_TRUE(killed.wait(io.waitScope) == nullptr);
  EXPECT_FALSE(script.leafFull);
}

TEST_F(ExecsTest, WhatWasKilledIsLetGoBeforeTheEnd) {
  uint32_t number = begin();
  script.leafFull = true;
  script.killPasses = 20;
  auto killed = execs().kill(number).eagerlyEvaluate(nullptr);
  execs().settle(number).wait(io.waitScope);
  EXPECT_FALSE(script.leafFull);
  execs().end(number);
  EXPECT_EQ(execs().begin(0, *peer).get<Execs::Begun>().sharedWith, 0u);
}

TEST_F(ExecsTest, AKillInProgressEndsWithTheSandbox) {
  uint32_t number = begin();
  script.leafFull = true;
  script.killPasses = 1'000'000;
  auto killed = execs().kill(number).eagerlyEvaluate(nullptr);
  pass(2 * kj::MILLISECONDS);
  script.killPasses = 1;
  EXPECT_TRUE(destruction.destroy(*sandbox, "test").wait(io.waitScope).complete);
  auto passes = script.count("leaf.kill");
  killed.wait(io.waitScope);
  EXPECT_LE(script.count("leaf.kill"), passes + 1);
  script.leafFull = false;
}

TEST_F(ExecsTest, AKillThatTakesTooLongSaysSo) {
  uint32_t number = begin();
  script.leafFull = true;
  script.killPasses = 1'000'000;
  auto answer = execs().kill(number).wait(io.waitScope);
  ASSERT_TRUE(answer != nullptr);
  EXPECT_EQ(KJ_ASSERT_NONNULL(answer).code, rpc::Code::UNAVAILABLE);
  script.killPasses = 1;
  while (script.leafFull) pass(5 * kj::MILLISECONDS);
  EXPECT_TRUE(execs().end(number).is<Execs::Ended>());
}

TEST_F(ExecsTest, ExecsOfAPeerThatWentAreKilledAndEnded) {
  auto otherPeer = kj::refcounted<PeerScope>(2, 0);
  begin();
  uint32_t survivor = execs().begin(0, *otherPeer).get<Execs::Begun>().number;
  script.leafFull = true;
  script.killPasses = 2;
  execs().dropPeer(*peer);
  while (execs().running() > 1) pass(2 * kj::MILLISECONDS);
  EXPECT_TRUE(execs().end(survivor).is<Execs::Ended>());
}

TEST_F(ExecsTest, AnAgentThatTakesNothingMoreIsSaidSo) {
  execs();
  runtime->control = nullptr;
  auto refused = execs().begin(0, *peer);
  ASSERT_TRUE(refused.is<Failure>());
  EXPECT_EQ(refused.get<Failure>().reason, rpc::Reason::AGENT_UNRESPONSIVE);
  EXPECT_EQ(execs().running(), 0u);
  EXPECT_EQ(script.count("leaf.remove 1"), 1u);
}

}  // namespace
}  // namespace cordon::broker
