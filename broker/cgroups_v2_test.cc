// The mechanics of the v2 tree (namespace, birth in a leaf, the mount that is
// handed over, kill and removal) on whatever v2 hierarchy this machine has; on a
// hybrid one it has no controllers, so limits and their counters can't be set
// there.
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <kj/debug.h>
#include <linux/sched.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "broker/cgroups_testing.h"

namespace cordon::broker {
namespace {

using namespace testing;

constexpr uint32_t kAgentUid = 0x70010000 + 65000;

class V2Test : public ::testing::Test {
 protected:
  V2Test() : base_("/cordon-test2-" + std::to_string(getpid())) {}
  ~V2Test() noexcept override {}

  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "making cgroups needs root";
    data_ = std::make_shared<TreeData>();
    data_->base = base_;
    data_->instance = "inst";
    for (auto& h : openHierarchies(readHierarchies())) {
      if (h.info.v2) data_->all.push_back(kj::mv(h));
    }
    ASSERT_EQ(data_->all.size(), 1u) << "no cgroup2 file system is mounted";
    KJ_IF_MAYBE (text, data_->all[0].mount.read("cgroup.controllers")) {
      controllers_ = text->find("memory") != std::string::npos;
    }
    V2Options options;
    if (!controllers_) options = {{}, false};
    KJ_IF_MAYBE (tree, openV2(data_, options)) {
      tree_ = kj::mv(*tree);
    } else {
      FAIL() << data_->whyNone;
    }
  }

  void TearDown() override {
    if (tree_.get() == nullptr) return;
    for (auto& name : tree_->names()) {
      auto sandbox = tree_->adopt(name);
      EXPECT_TRUE(eventually([&] { return sandbox->killPass(); }));
      EXPECT_TRUE(eventually([&] { return sandbox->removePass().empty(); }));
    }
    EXPECT_TRUE(eventually([&] { return tree_->removeInstance(); }));
    EXPECT_EQ(directoriesBelow(base_), std::vector<std::string>{});
  }

  kj::Own<SandboxCgroups> make(const std::string& name) {
    auto made = tree_->create(name, someLimits(), kAgentUid);
    KJ_REQUIRE(made.is<kj::Own<SandboxCgroups>>(), made.get<LimitNotApplied>().file,
               made.get<LimitNotApplied>().error);
    return kj::mv(made.get<kj::Own<SandboxCgroups>>());
  }

  CgroupDir dir(const std::string& path) {
    KJ_IF_MAYBE (found, openBelow(data_->all[0].mount, data_->base + "/inst/" + path)) {
      return kj::mv(*found);
    }
    KJ_FAIL_REQUIRE("no such cgroup", path);
  }

  static pid_t bornIn(int cgroup) {
    clone_args args{};
    args.flags = CLONE_INTO_CGROUP;
    args.exit_signal = SIGCHLD;
    args.cgroup = static_cast<uint64_t>(cgroup);
    return static_cast<pid_t>(syscall(SYS_clone3, &args, sizeof(args)));
  }

  // The agent: born in NAME/agent as root, in the sandbox's cgroup namespace,
  // and then without privileges. Its exit status is what `body` returns.
  Process agent(SandboxCgroups& sandbox, const std::string& name,
                const std::function<int()>& body) {
    CgroupDir home = dir(name + "/agent");
    pid_t pid = bornIn(home.fd());
    if (pid == 0) {
      if (setns(sandbox.namespaceFd(), CLONE_NEWCGROUP) != 0) _exit(90);
      if (setgroups(0, nullptr) != 0 || setresgid(kAgentUid, kAgentUid, kAgentUid) != 0 ||
          setresuid(kAgentUid, kAgentUid, kAgentUid) != 0) {
        _exit(91);
      }
      _exit(body());
    }
    KJ_REQUIRE(pid > 0);
    return Process(pid);
  }

  std::string base_;
  bool controllers_ = false;
  std::shared_ptr<TreeData> data_;
  kj::Own<CgroupTree> tree_;
};

TEST_F(V2Test, AnExecIsBornInItsLeafByAnUnprivilegedAgent) {
  auto sandbox = make("sb-a");
  EXPECT_EQ(sandbox->mode(), CgroupMode::kV2);
  EXPECT_GE(sandbox->namespaceFd(), 0);
  auto leaf = sandbox->createExec(1);
  auto fds = leaf->agentFds();
  ASSERT_EQ(fds.size(), 1u);
  int status = agent(*sandbox, "sb-a", [&] {
                 pid_t pid = bornIn(fds[0]);
                 if (pid == 0) {
                   park();
                 }
                 return pid < 0 ? errno : 0;
               }).wait();
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0) << strerror(WEXITSTATUS(status));
  EXPECT_TRUE(leaf->populated());
  EXPECT_EQ(dir("sb-a/work/exec-1").processes().size(), 1u);
  EXPECT_FALSE(leaf->remove());
  EXPECT_FALSE(leaf->killPass());
  EXPECT_TRUE(eventually([&] { return leaf->killPass(); }));
  EXPECT_TRUE(eventually([&] { return leaf->remove(); }));
}

TEST_F(V2Test, TheLeafThatIsHandedOverIsNoWayOutAndNotWritable) {
  auto sandbox = make("sb-b");
  auto leaf = sandbox->createExec(1);
  int mount = leaf->agentFds()[0];
  struct stat inside, above;
  KJ_SYSCALL(fstatat(mount, ".", &inside, 0));
  KJ_SYSCALL(fstatat(mount, "../../..", &above, 0));
  EXPECT_EQ(inside.st_ino, above.st_ino);
  EXPECT_EQ(openat(mount, "../../../../../etc/passwd", O_RDONLY), -1);
  for (const char* file : {"cgroup.procs", "cgroup.kill", "cgroup.freeze"}) {
    EXPECT_EQ(openat(mount, file, O_WRONLY), -1) << file;
    EXPECT_EQ(errno, EROFS) << file;
  }
  EXPECT_EQ(mkdirat(mount, "x", 0755), -1);
  EXPECT_EQ(errno, EROFS);
  int status = agent(*sandbox, "sb-b", [&] {
                 // Not into the agent's own parent's siblings, and no write.
                 if (openat(mount, "cgroup.procs", O_WRONLY) >= 0) return 1;
                 if (openat(mount, "cgroup.procs", O_RDONLY) < 0) return 2;
                 return 0;
               }).wait();
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_F(V2Test, AnotherUidIsNotBornInTheLeaf) {
  auto sandbox = make("sb-c");
  auto leaf = sandbox->createExec(1);
  int mount = leaf->agentFds()[0];
  int status = agent(*sandbox, "sb-c", [&] { return 0; }).wait();
  EXPECT_EQ(WEXITSTATUS(status), 0);
  CgroupDir home = dir("sb-c/agent");
  pid_t pid = bornIn(home.fd());
  if (pid == 0) {
    if (setns(sandbox->namespaceFd(), CLONE_NEWCGROUP) != 0) _exit(90);
    if (setresuid(kAgentUid + 1, kAgentUid + 1, kAgentUid + 1) != 0) _exit(91);
    pid_t child = bornIn(mount);
    if (child == 0) _exit(0);
    _exit(child < 0 ? errno : 0);
  }
  Process other(pid);
  EXPECT_EQ(WEXITSTATUS(other.wait()), EACCES);
}

TEST_F(V2Test, KillAndRemoveTakeTheWholeSandbox) {
  auto sandbox = make("sb-d");
  auto one = sandbox->createExec(1), two = sandbox->createExec(2);
  auto running = agent(*sandbox, "sb-d", [&] {
    for (int fd : {one->agentFds()[0], two->agentFds()[0]}) {
      pid_t pid = bornIn(fd);
      if (pid < 0) return errno;
      if (pid == 0) {
        setsid();
        for (int i = 0; i < 3; ++i) (void)!fork();  // eight of them
        park();
      }
    }
    park();
  });
  ASSERT_TRUE(eventually([&] { return one->populated() && two->populated(); }));
  EXPECT_FALSE(sandbox->removePass().empty());
  ASSERT_TRUE(eventually([&] { return sandbox->killPass(); }));
  EXPECT_TRUE(WIFSIGNALED(running.wait()));
  EXPECT_TRUE(eventually([&] { return sandbox->removePass().empty(); }));
  EXPECT_EQ(tree_->names(), std::vector<std::string>{});
}

TEST_F(V2Test, AFrozenWorkloadIsThawedOrKilledAndTheCopierGoesOn) {
  auto sandbox = make("sb-f");
  EXPECT_FALSE(sandbox->frozen());
  auto leaf = sandbox->createExec(1);
  auto running = agent(*sandbox, "sb-f", [&] {
    pid_t pid = bornIn(leaf->agentFds()[0]);
    if (pid < 0) return errno;
    park();
  });
  ASSERT_TRUE(eventually([&] { return leaf->populated(); }));
  ASSERT_EQ(sandbox->freeze(), 0);
  ASSERT_TRUE(eventually([&] { return sandbox->frozen(); }));
  for (auto place : {HelperPlace::kBeside, HelperPlace::kInWork}) {
    bool beside = place == HelperPlace::kBeside;
    auto made = sandbox->createHelper(place);
    ASSERT_TRUE(made.is<kj::Own<HelperGroup>>());
    auto& helper = made.get<kj::Own<HelperGroup>>();
    EXPECT_TRUE(sandbox->createHelper(place).is<LimitNotApplied>()) << "one at a time";
    auto fds = helper->initFds();
    ASSERT_EQ(fds.size(), 1u);
    pid_t pid = bornIn(fds[0]);
    if (pid == 0) {
      if (beside) _exit(0);  // it runs, though work is frozen
      park();
    }
    Process process(pid);
    if (beside) {
      EXPECT_EQ(process.wait(), 0);
      ASSERT_EQ(sandbox->thaw(), 0);
      EXPECT_TRUE(eventually([&] { return !sandbox->frozen(); }));
    } else {
      EXPECT_FALSE(helper->remove());
    }
    EXPECT_TRUE(eventually([&] { return helper->killPass(); }));
    EXPECT_TRUE(eventually([&] { return helper->remove(); }));
  }
  ASSERT_EQ(sandbox->freeze(), 0);
  ASSERT_TRUE(eventually([&] { return sandbox->frozen(); }));
  EXPECT_TRUE(eventually([&] { return sandbox->killPass(); }));
  EXPECT_TRUE(WIFSIGNALED(running.wait()));
}

TEST_F(V2Test, LimitsHoldWhereThereAreControllers) {
  if (!controllers_) GTEST_SKIP() << "this machine's cgroup v2 has no controllers";
  auto sandbox = make("sb-e");
  auto text = [&](const char* path, const char* file) {
    return KJ_ASSERT_NONNULL(dir(path).read(file), path, file);
  };
  EXPECT_EQ(text("sb-e/work", "memory.max"), "33554432\n");
  EXPECT_EQ(text("sb-e/work", "pids.max"), "12\n");
  EXPECT_EQ(text("sb-e/work", "cpu.max"), "50000 100000\n");
  EXPECT_EQ(text("sb-e/agent", "pids.max"), "96\n");
  auto facts = sandbox->readLimits();
  EXPECT_EQ(facts.size(), 8u);
  for (auto& fact : facts) {
    EXPECT_TRUE(fact.file == "memory.swap.max" || fact.missing.empty()) << fact.file;
    if (!fact.missing.empty()) continue;
    EXPECT_EQ(fact.value + "\n", text(("sb-e/" + fact.group).c_str(), fact.file.c_str()));
  }
}

}  // namespace
}  // namespace cordon::broker
