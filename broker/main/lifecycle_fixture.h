// Creation, Destruction and Execs against test doubles of what is below them.
// The real things are in broker_test.cc and broker_runc_test.cc.
#pragma once
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

// What happened, in order, and what is to go wrong.
struct Script {
  std::vector<std::string> log;
  bool ledgerRefuses = false;
  bool limitDiffers = false;
  bool createFails = false;
  bool isSandbox = true;
  bool createThrows = false;
  std::string whyNoCore = "as the test wants";
  bool coreAsked = false;
  uint64_t coreCookie = 4711;  // where it was asked for
  bool agentSilent = false;    // never greets
  bool agentCloses = false;    // closes its stream and ends
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
  kj::Promise<kj::Maybe<Failure>> open(SandboxRecord& record, bool wantIds) override {
    using Answer = kj::Maybe<Failure>;
    if (script_.ledgerRefuses) {
      return Answer(failure(rpc::Reason::ID_RANGES_EXHAUSTED, "none left"));
    }
    script_.say("ledger.open");
    EXPECT_EQ(wantIds, script_.isSandbox);
    record.idFirst = 65536;
    record.idCount = 65536;
    return Answer(nullptr);
  }
  kj::Maybe<Failure> update(const SandboxRecord& record) override {
    script_.say("ledger.update " + std::to_string(record.left.size()));
    return nullptr;
  }
  kj::Promise<std::vector<LeftOver>> close(const SandboxRecord&) override {
    script_.say("ledger.close");
    return std::vector<LeftOver>{};
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
    script_.coreAsked = request.ownCore;
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
    if (script_.coreAsked) result.core = {script_.coreCookie, "a test double"};
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
    services.whyNoCoreScheduling = [this]() { return script.whyNoCore; };
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

}  // namespace cordon::broker
