// The v1 tree on this machine's own hierarchies.
#include <errno.h>
#include <fcntl.h>
#include <kj/debug.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "broker/cgroups_sweep.h"
#include "broker/cgroups_testing.h"

namespace cordon::broker {
namespace {

using namespace testing;
using Kind = rpc::CounterKind;

class V1Test : public ::testing::Test {
 protected:
  V1Test() : base_("/cordon-test-" + std::to_string(getpid())) {}
  ~V1Test() noexcept override {}

  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "making cgroups needs root";
    tree_ = CgroupTree::open(base_, "inst");
    if (tree_->mode() == CgroupMode::kV2) GTEST_SKIP() << "this machine has cgroup v2 alone";
    ASSERT_EQ(tree_->mode(), CgroupMode::kV1) << tree_->whyNone();
  }

  void TearDown() override {
    if (tree_.get() == nullptr || tree_->mode() != CgroupMode::kV1) return;
    for (auto& name : tree_->names()) {
      auto sandbox = tree_->adopt(name);
      EXPECT_TRUE(eventually([&] { return sandbox->killPass(); }));
      EXPECT_TRUE(eventually([&] { return sandbox->removePass().empty(); }));
    }
    EXPECT_TRUE(eventually([&] { return tree_->removeInstance(); }));
    EXPECT_EQ(directoriesBelow(base_), std::vector<std::string>{});
  }

  kj::Own<SandboxCgroups> make(const std::string& name, ResolvedLimits limits = someLimits()) {
    auto made = tree_->create(name, limits, 0);
    KJ_REQUIRE(made.is<kj::Own<SandboxCgroups>>(), made.get<LimitNotApplied>().file,
               made.get<LimitNotApplied>().error);
    return kj::mv(made.get<kj::Own<SandboxCgroups>>());
  }

  // What the kernel says, read by path.
  std::string file(const std::string& controller, const std::string& path) {
    for (auto& h : openHierarchies(readHierarchies())) {
      if (h.info.v2 || !h.info.has(controller)) continue;
      size_t slash = path.rfind('/');
      KJ_IF_MAYBE (dir, openBelow(h.mount, base_ + "/inst/" + path.substr(0, slash))) {
        KJ_IF_MAYBE (text, dir->read(path.c_str() + slash + 1)) {
          return text->substr(0, text->find_last_not_of('\n') + 1);
        }
      }
    }
    return "(none)";
  }

  // A child that joins the leaf as the agent's child does, then runs `body`.
  static Process joined(ExecLeaf& leaf, const std::function<void()>& body) {
    auto fds = leaf.agentFds();
    return Process([&] {
      for (size_t i = 1; i < fds.size(); ++i) {
        if (write(fds[i], "0", 1) != 1) _exit(99);
      }
      body();
    });
  }

  std::string base_;
  kj::Own<CgroupTree> tree_;
};

TEST_F(V1Test, LimitsAreWhereTheyBelong) {
  auto sandbox = make("sb-a");
  EXPECT_EQ(sandbox->path(), base_ + "/inst/sb-a");
  EXPECT_EQ(file("memory", "sb-a/work/memory.limit_in_bytes"), std::to_string(32 << 20));
  EXPECT_EQ(file("pids", "sb-a/work/pids.max"), "12");
  EXPECT_EQ(file("cpu", "sb-a/work/cpu.cfs_quota_us"), "50000");
  EXPECT_EQ(file("cpu", "sb-a/work/cpu.cfs_period_us"), "100000");
  EXPECT_EQ(file("memory", "sb-a/agent/memory.limit_in_bytes"), std::to_string(192 << 20));
  EXPECT_EQ(file("pids", "sb-a/agent/pids.max"), "96");
  // Nothing on NAME itself: a full workload must not starve the agent.
  EXPECT_EQ(file("pids", "sb-a/pids.max"), "max");
  EXPECT_EQ(file("cpu", "sb-a/cpu.cfs_quota_us"), "-1");
  std::string swap = file("memory", "sb-a/work/memory.memsw.limit_in_bytes");
  EXPECT_TRUE(swap == std::to_string(32 << 20) ||
              (swap == "(none)" && file("memory", "sb-a/work/memory.swappiness") == "0"))
      << swap;
  EXPECT_EQ(sandbox->namespaceFd(), -1);
  EXPECT_GE(sandbox->directories().size(), 9u);
}

TEST_F(V1Test, LimitsAreReadAnew) {
  auto sandbox = make("sb-a");
  auto value = [&](const std::string& group, const std::string& name) -> std::string {
    for (auto& fact : sandbox->readLimits()) {
      if (fact.group == group && fact.file == name) return fact.value;
    }
    return "not there";
  };
  for (const char* group : {"work", "agent"}) {
    std::string at = std::string("sb-a/") + group + "/";
    EXPECT_EQ(value(group, "pids.max"), file("pids", at + "pids.max"));
    EXPECT_EQ(value(group, "memory.limit_in_bytes"), file("memory", at + "memory.limit_in_bytes"));
  }
  EXPECT_EQ(value("work", "pids.max"), std::to_string(someLimits().pids));
  EXPECT_EQ(value("work", "cpu.cfs_quota_us"), file("cpu", "sb-a/work/cpu.cfs_quota_us"));
  EXPECT_EQ(value("agent", "cpu.shares"), "2048");
  // Somebody else changes one.
  for (auto& h : openHierarchies(readHierarchies())) {
    if (h.info.v2 || !h.info.has("pids")) continue;
    auto work = openBelow(h.mount, base_ + "/inst/sb-a/work");
    ASSERT_EQ(KJ_ASSERT_NONNULL(work).write("pids.max", "max"), 0);
  }
  EXPECT_EQ(value("work", "pids.max"), "max");
  sandbox->removePass();
  EXPECT_EQ(value("work", "pids.max"), "");
}

// A child that joins as the sandbox's init does.
Process asInit(const std::vector<kj::AutoCloseFd>& fds) {
  return Process([&] {
    for (auto& fd : fds) {
      if (write(fd, "0", 1) != 1) _exit(99);
    }
    for (;;) pause();
  });
}

TEST_F(V1Test, AFrozenSandboxIsThawedAndDiesAllTheSame) {
  auto sandbox = make("sb-f");
  if (sandbox->freeze() == ENOTSUP) GTEST_SKIP() << "no freezer here";
  EXPECT_EQ(sandbox->thaw(), 0);
  auto init = asInit(sandbox->initFds());
  ASSERT_TRUE(eventually([&] { return file("freezer", "sb-f/tasks") != ""; }));
  EXPECT_FALSE(sandbox->frozen());
  ASSERT_EQ(sandbox->freeze(), 0);
  EXPECT_TRUE(eventually([&] { return sandbox->frozen(); }));
  ASSERT_EQ(sandbox->thaw(), 0);
  EXPECT_TRUE(eventually([&] { return !sandbox->frozen(); }));
  // As another broker finds it.
  ASSERT_EQ(sandbox->freeze(), 0);
  EXPECT_TRUE(eventually([&] { return sandbox->frozen(); }));
  auto found = tree_->adopt("sb-f");
  EXPECT_TRUE(eventually([&] { return found->killPass(); }));
  EXPECT_TRUE(eventually([&] { return found->removePass().empty(); }));
}

TEST_F(V1Test, HelpersHaveTheirOwnPlace) {
  auto sandbox = make("sb-h");
  for (auto place : {HelperPlace::kBeside, HelperPlace::kInWork}) {
    bool beside = place == HelperPlace::kBeside;
    auto made = sandbox->createHelper(place);
    ASSERT_TRUE(made.is<kj::Own<HelperGroup>>());
    auto& helper = made.get<kj::Own<HelperGroup>>();
    std::string memory = beside ? "sb-h/copier/" : "sb-h/work/copier/";
    // A workload of 2 tasks has no room for a helper's.
    EXPECT_EQ(file("pids", "sb-h/copier/pids.max"), "8");
    EXPECT_EQ(file("memory", memory + "memory.limit_in_bytes") == std::to_string(96 << 20), beside);
    auto process = asInit(helper->initFds());
    ASSERT_TRUE(eventually([&] { return file("memory", memory + "tasks") != ""; }));
    EXPECT_FALSE(helper->remove());
    EXPECT_TRUE(eventually([&] { return helper->killPass(); }));
    EXPECT_TRUE(eventually([&] { return helper->remove(); }));
  }
}

TEST_F(V1Test, ALimitThatDoesNotHoldLeavesNothing) {
  auto limits = someLimits();
  limits.cpuMillis = 5;  // below the kernel's smallest quota
  auto answer = tree_->create("sb-b", limits, 0);
  ASSERT_TRUE(answer.is<LimitNotApplied>());
  EXPECT_EQ(answer.get<LimitNotApplied>().file, "cpu.cfs_quota_us");
  EXPECT_EQ(answer.get<LimitNotApplied>().error, EINVAL);
  limits = someLimits();
  limits.pids = 1u << 31;  // above PIDS_MAX
  answer = tree_->create("sb-b", limits, 0);
  ASSERT_TRUE(answer.is<LimitNotApplied>());
  EXPECT_EQ(answer.get<LimitNotApplied>().file, "pids.max");
  EXPECT_EQ(tree_->names(), std::vector<std::string>{});
}

TEST_F(V1Test, AReadBackThatDiffersIsRefused) {
  auto sandbox = make("sb-c");
  for (auto& h : openHierarchies(readHierarchies())) {
    if (h.info.v2 || !h.info.has("memory")) continue;
    KJ_IF_MAYBE (dir, openBelow(h.mount, base_ + "/inst/sb-c/work")) {
      // The kernel keeps whole pages: 10000 reads back as 8192.
      auto exact = applyLimit(*dir, "memory.soft_limit_in_bytes", 10000);
      KJ_IF_MAYBE (bad, exact) {
        EXPECT_EQ(bad->error, 0);
        EXPECT_EQ(bad->file, "memory.soft_limit_in_bytes");
      } else {
        ADD_FAILURE() << "10000 does not read back as such, and nobody noticed";
      }
      EXPECT_TRUE(applyLimit(*dir, "memory.soft_limit_in_bytes", 10000, ReadBack::kPages) ==
                  nullptr);
      auto missing = applyLimit(*dir, "memory.no_such_file", 1);
      KJ_IF_MAYBE (bad, missing) {
        EXPECT_EQ(bad->error, ENOENT);
      } else {
        ADD_FAILURE();
      }
    }
  }
}

TEST_F(V1Test, ANameThatExistsIsNotTouched) {
  auto sandbox = make("sb-d");
  auto answer = tree_->create("sb-d", someLimits(), 0);
  ASSERT_TRUE(answer.is<LimitNotApplied>());
  EXPECT_EQ(answer.get<LimitNotApplied>().error, EEXIST);
  EXPECT_EQ(file("pids", "sb-d/work/pids.max"), "12");
  EXPECT_ANY_THROW(tree_->create("../x", someLimits(), 0));
  EXPECT_ANY_THROW(tree_->create("a/b", someLimits(), 0));
  EXPECT_ANY_THROW(tree_->adopt(".."));
  EXPECT_ANY_THROW(CgroupTree::open("/../x", "inst"));
  EXPECT_ANY_THROW(CgroupTree::open("/", "inst"));
  EXPECT_ANY_THROW(CgroupTree::open("/a", ".."));
}

TEST_F(V1Test, ExecsJoinTheirLeafAndHaveCountersOfTheirOwn) {
  auto limits = someLimits();
  limits.cpuMillis = 50;  // so little that a loaded machine gives it, too
  auto sandbox = make("sb-e", limits);
  auto one = sandbox->createExec(1), two = sandbox->createExec(2);
  EXPECT_LE(one->agentFds().size(), 8u);
  {
    auto burner = joined(*one, [] {
      for (alarm(60);;) asm volatile("");
    });
    ASSERT_TRUE(eventually([&] { return one->cpuUsageUs() > 20'000; }));
    EXPECT_TRUE(one->populated());
    EXPECT_FALSE(two->populated());
    // The quota is work's: the burner's throttling is seen there.
    ASSERT_TRUE(eventually(
        [&] { return value(sandbox->read(), Kind::CPU_THROTTLED, rpc::Scope::SANDBOX) > 0; }));
  }
  EXPECT_EQ(two->cpuUsageUs(), 0u);
  EXPECT_GE(value(sandbox->read(), Kind::CPU_USAGE_US, rpc::Scope::SANDBOX), 20'000u);
  EXPECT_GE(value(one->read(), Kind::CPU_USER_US) + value(one->read(), Kind::CPU_SYSTEM_US),
            10'000u);
  ASSERT_TRUE(eventually([&] { return !one->populated(); }));
  EXPECT_TRUE(one->remove());
  EXPECT_TRUE(two->remove());
  EXPECT_TRUE(two->remove());  // again
}

TEST_F(V1Test, AnOutOfMemoryKillIsCountedAtItsExec) {
  auto sandbox = make("sb-f");
  auto one = sandbox->createExec(1), two = sandbox->createExec(2);
  auto before = one->read();
  auto hog = joined(*one, [] {
    size_t size = 64 << 20;
    void* p = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(p, 1, size);
  });
  int status = hog.wait();
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGKILL);
  EXPECT_EQ(value(before, Kind::OOM_KILLS), 0u);
  EXPECT_EQ(value(one->read(), Kind::OOM_KILLS), 1u);
  EXPECT_EQ(value(two->read(), Kind::OOM_KILLS), 0u);
  EXPECT_GT(value(one->read(), Kind::MEMORY_PEAK_BYTES), uint64_t{16 << 20});
  EXPECT_LE(value(sandbox->read(), Kind::MEMORY_PEAK_BYTES, rpc::Scope::SANDBOX),
            uint64_t{32 << 20});
}

TEST_F(V1Test, MemoryIsTightWhenItIsFullOfWhatStays) {
  auto sandbox = make("sb-l");
  auto one = sandbox->createExec(1);
  EXPECT_FALSE(sandbox->memoryTight());
  {
    auto hog = joined(*one, [] {
      size_t size = 31 << 20;
      void* p = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      memset(p, 1, size);
      park();
    });
    EXPECT_TRUE(eventually([&] { return sandbox->memoryTight(); }));
  }
  EXPECT_TRUE(eventually([&] { return !sandbox->memoryTight(); }));
}

TEST_F(V1Test, ALeafIsAsNewForAnotherExec) {
  auto sandbox = make("sb-m");
  auto one = sandbox->createExec(1);
  {
    auto parked = joined(*one, [] { park(); });
    EXPECT_TRUE(eventually([&] { return one->killPass(); }));
    EXPECT_EQ(file("pids", "sb-m/work/exec-1/pids.max"), "0");
  }
  EXPECT_TRUE(eventually([&] { return !one->populated(); }));
  one->renew();
  EXPECT_EQ(file("pids", "sb-m/work/exec-1/pids.max"), "12");
  auto again = joined(*one, [] { _exit(fork() < 0 ? 1 : 0); });
  EXPECT_EQ(WEXITSTATUS(again.wait()), 0);
}

TEST_F(V1Test, ARefusedForkIsCountedAtItsExec) {
  auto sandbox = make("sb-g");
  auto one = sandbox->createExec(1);
  auto process = joined(*one, [] {
    int refused = 0;
    for (int i = 0; i < 20; ++i) {
      pid_t pid = fork();
      if (pid == 0) park();
      if (pid < 0 && errno == EAGAIN) ++refused;
    }
    _exit(refused);
  });
  int refused = WEXITSTATUS(process.wait());
  EXPECT_EQ(refused, 20 - 11);  // 12 with the process itself
  EXPECT_EQ(value(one->read(), Kind::PIDS_REFUSED), static_cast<uint64_t>(refused));
  EXPECT_EQ(value(one->read(), Kind::PIDS_NOW), 11u);
  EXPECT_EQ(value(sandbox->read(), Kind::PIDS_REFUSED, rpc::Scope::HOST), 0u);
  EXPECT_FALSE(one->remove());  // kept while populated
  EXPECT_TRUE(eventually([&] { return one->killPass(); }));
  EXPECT_TRUE(eventually([&] { return one->remove(); }));
}

TEST_F(V1Test, KillPassEndsAForkBombAndDoesNotCountItself) {
  auto limits = someLimits();
  limits.memoryBytes = 1 << 30;  // so that the bomb meets the limit on processes first
  limits.pids = 150;
  limits.cpuMillis = 2000;
  auto sandbox = make("sb-h", limits);
  auto leaf = sandbox->createExec(7), other = sandbox->createExec(8);
  auto bystander = joined(*other, park);
  auto bomb = joined(*leaf, forkBomb);
  ASSERT_TRUE(eventually([&] { return value(leaf->read(), Kind::PIDS_REFUSED) > 100; }));
  ASSERT_TRUE(eventually([&] { return other->populated(); }));
  leaf->killPass();
  uint64_t refused = value(leaf->read(), Kind::PIDS_REFUSED);
  ASSERT_TRUE(eventually([&] { return leaf->killPass(); }));
  EXPECT_FALSE(leaf->populated());
  EXPECT_EQ(value(leaf->read(), Kind::PIDS_REFUSED), refused) << "the kill shows as evidence";
  EXPECT_TRUE(bystander.alive());
  EXPECT_TRUE(eventually([&] { return leaf->remove(); }));
}

TEST_F(V1Test, KillPassOfTheSandboxTakesAgentAndEveryLeaf) {
  auto sandbox = make("sb-i");
  auto one = sandbox->createExec(1);
  auto bomb = joined(*one, forkBomb);
  // The agent joins its cgroup the way runc puts it there.
  std::vector<int> fds;
  std::vector<kj::AutoCloseFd> held;
  for (auto& h : openHierarchies(readHierarchies())) {
    KJ_IF_MAYBE (dir, openBelow(h.mount, sandbox->path() + "/agent")) {
      KJ_IF_MAYBE (fd, dir->openFile("cgroup.procs", O_WRONLY)) {
        fds.push_back(fd->get());
        held.push_back(kj::mv(*fd));
      }
    }
  }
  Process agent([&] {
    for (int fd : fds) {
      if (write(fd, "0", 1) != 1) _exit(99);
    }
    park();
  });
  ASSERT_TRUE(eventually([&] { return file("pids", "sb-i/agent/pids.current") == "1"; }));
  auto left = sandbox->removePass();
  EXPECT_FALSE(left.empty());
  EXPECT_TRUE(std::any_of(left.begin(), left.end(), [&](auto& l) {
    return l.kind == "process" && l.name == std::to_string(agent.pid());
  }));
  ASSERT_TRUE(eventually([&] { return sandbox->killPass(); }));
  EXPECT_TRUE(WIFSIGNALED(agent.wait()));
  ASSERT_TRUE(eventually([&] { return sandbox->removePass().empty(); }));
  EXPECT_EQ(tree_->names(), std::vector<std::string>{});
  EXPECT_EQ(file("pids", "sb-i/agent/pids.current"), "(none)");
}

TEST_F(V1Test, WhatAnEarlierBrokerLeftIsFoundInEveryHierarchy) {
  {
    auto sandbox = make("sb-j");
    auto leaf = sandbox->createExec(3);
  }
  // As runc does: NAME/agent in the hierarchies we do not use.
  size_t extra = 0;
  for (auto& h : openHierarchies(readHierarchies())) {
    if (h.info.has("memory")) continue;
    makeBelow(h.mount, base_ + "/inst/sb-j/agent");
    makeBelow(h.mount, base_ + "/inst/sb-only-here/agent");
    ++extra;
  }
  ASSERT_GT(extra, 0u);
  auto again = CgroupTree::open(base_, "inst");
  EXPECT_EQ(again->names(), (std::vector<std::string>{"sb-j", "sb-only-here"}));
  auto adopted = again->adopt("sb-j");
  EXPECT_TRUE(adopted->killPass());
  EXPECT_ANY_THROW(adopted->createExec(1));
  EXPECT_TRUE(adopted->removePass().empty());
  EXPECT_GE(adopted->directories().size(), extra);
  EXPECT_EQ(again->names(), (std::vector<std::string>{"sb-only-here"}));
  EXPECT_FALSE(again->removeInstance());  // not empty: stays
  EXPECT_TRUE(again->adopt("sb-only-here")->removePass().empty());
  EXPECT_TRUE(again->adopt("sb-never-was")->removePass().empty());
}

TEST_F(V1Test, WhatIsBelowAnotherBaseIsFoundByItsPath) {
  auto made = make("sb-k");
  const std::string path = made->path();
  EXPECT_EQ(path, tree_->pathOf("sb-k"));
  made = nullptr;
  auto other = CgroupTree::open(base_ + "-moved", "inst");
  EXPECT_TRUE(other->adopt("sb-k")->removePass().empty());
  EXPECT_NE(file("memory", "sb-k/work/memory.limit_in_bytes"), "(none)") << "of another base";
  // Not a sandbox's path: as if none had been given.
  EXPECT_TRUE(other->adopt("sb-k", "/")->removePass().empty());
  EXPECT_TRUE(other->adopt("sb-k", base_ + "/inst")->removePass().empty());
  auto adopted = other->adopt("sb-k", path);
  EXPECT_TRUE(adopted->killPass());
  EXPECT_TRUE(adopted->removePass().empty());
  EXPECT_EQ(file("memory", "sb-k/work/memory.limit_in_bytes"), "(none)");
  EXPECT_TRUE(other->removeInstance());
}

TEST_F(V1Test, TwoInstancesShareTheBase) {
  auto other = CgroupTree::open(base_, "other");
  ASSERT_EQ(other->mode(), CgroupMode::kV1);
  auto mine = make("sb-k");
  EXPECT_EQ(other->names(), std::vector<std::string>{});
  EXPECT_TRUE(other->removeInstance());
  EXPECT_EQ(tree_->names(), std::vector<std::string>{"sb-k"});
}

TEST_F(V1Test, InstancesThatComeAndGoDoNotDisturbEachOther) {
  // The base goes with the last instance, while others are about to use it.
  EXPECT_TRUE(tree_->removeInstance());
  std::vector<Process> processes;
  for (int p = 0; p < 3; ++p) {
    processes.emplace_back([&, p] {
      for (int i = 0; i < 40; ++i) {
        auto tree = CgroupTree::open(base_, "p" + std::to_string(p));
        if (tree->mode() != CgroupMode::kV1) _exit(2);
        if (!tree->removeInstance()) _exit(3);
      }
    });
  }
  for (auto& process : processes) EXPECT_EQ(process.wait(), 0);
}

TEST_F(V1Test, ABaseThatBelongsToSomebodyElseIsNotUsed) {
  for (auto& h : openHierarchies(readHierarchies())) {
    if (h.info.v2 || !h.info.has("pids")) continue;
    auto theirs = makeBelow(h.mount, base_ + "-theirs");
    ASSERT_EQ(fchown(theirs.fd(), 1000, 1000), 0);
    auto tree = CgroupTree::open(base_ + "-theirs", "inst");
    EXPECT_EQ(tree->mode(), CgroupMode::kNone);
    EXPECT_NE(tree->whyNone().find("somebody else"), std::string::npos) << tree->whyNone();
    EXPECT_TRUE(tree->create("sb-x", someLimits(), 0).is<LimitNotApplied>());
    EXPECT_TRUE(tree->removeInstance());
    EXPECT_EQ(h.mount.removeChild(base_.substr(1) + "-theirs"), 0);
  }
}

TEST_F(V1Test, ALeafOutlivesItsSandboxObject) {
  auto sandbox = make("sb-l");
  auto leaf = sandbox->createExec(1);
  EXPECT_TRUE(sandbox->removePass().empty());
  EXPECT_TRUE(sandbox->read().empty() ||
              sandbox->read()[0].scope == rpc::Scope::HOST);  // gone, not a fault
  sandbox = nullptr;
  EXPECT_EQ(leaf->cpuUsageUs(), 0u);
  EXPECT_FALSE(leaf->populated());
  EXPECT_TRUE(leaf->killPass());
  EXPECT_TRUE(leaf->remove());
}

TEST_F(V1Test, ExecsOfTheSameNumberAreRefusedAndLeaveTheFirst) {
  auto sandbox = make("sb-m");
  auto leaf = sandbox->createExec(1);
  EXPECT_ANY_THROW(sandbox->createExec(1));
  EXPECT_EQ(file("pids", "sb-m/work/exec-1/pids.max"), "12");
}

TEST(KillListed, SparesANumberThatIsNoLongerListed) {
  Process bystander(park);
  int calls = 0;
  // Listed at first, but not any more once its pidfd is open: the number was
  // somebody else's by then.
  EXPECT_FALSE(killListed([&]() -> std::vector<pid_t> {
    return calls++ == 0 ? std::vector<pid_t>{bystander.pid()} : std::vector<pid_t>{};
  }));
  EXPECT_EQ(calls, 2);
  EXPECT_TRUE(bystander.alive());
  EXPECT_FALSE(killListed([&]() -> std::vector<pid_t> { return {bystander.pid(), 0, -5}; }));
  EXPECT_TRUE(WIFSIGNALED(bystander.wait()));
  // Never itself.
  EXPECT_FALSE(killListed([&]() -> std::vector<pid_t> { return {getpid()}; }));
  EXPECT_TRUE(killListed([]() -> std::vector<pid_t> { return {}; }));
}

TEST(CgroupNames, OnlyPlainOnes) {
  EXPECT_TRUE(isCgroupPath("/cordon"));
  EXPECT_TRUE(isCgroupPath("/a.slice/b-c_d"));
  for (const char* bad :
       {"", "/", "cordon", "/a/", "//a", "/..", "/a/../b", "/.", "/a b", "/a\n"}) {
    EXPECT_FALSE(isCgroupPath(bad)) << bad;
  }
}

TEST(Counters, Parse) {
  auto get = [](const char* text, const char* key) -> int64_t {
    KJ_IF_MAYBE (v, parseCounter(text, key)) return static_cast<int64_t>(*v);
    return -1;
  };
  EXPECT_EQ(get("5\n", ""), 5);
  EXPECT_EQ(get("a 1\noom_kill 7\n", "oom_kill"), 7);
  EXPECT_EQ(get("oom_kill_disable 1\noom_kill 7", "oom_kill"), 7);
  EXPECT_EQ(get("oom 1\n", "oom_kill"), -1);
  EXPECT_EQ(get("max x\n", "max"), -1);
  EXPECT_EQ(get("", ""), -1);
  EXPECT_EQ(get("max 18446744073709551616\n", "max"), -1);
}

}  // namespace
}  // namespace cordon::broker
