// The agent as in a sandbox: init of its own pid and user namespaces, uid 65000
// with three capabilities, execs in leaf cgroups. Needs root.
#include <fcntl.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <kj/debug.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/mount.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>

#include "vm_agent/test_agent.h"

namespace cordon::agent::testing {
namespace {

constexpr uint32_t kFirstId = 0x73e80000;
constexpr uint32_t kAgentUid = 65000;
constexpr uint32_t kAgentCaps = 1u << CAP_SETUID | 1u << CAP_SETGID | 1u << CAP_KILL;

// Any failure in the child before exec ends it with a number that says where.
void must(int step, bool good) {
  if (!good) _exit(100 + step);
}

void write(const std::string& path, const std::string& text) {
  std::ofstream out(path);
  out << text;
  out.flush();
  KJ_REQUIRE(out.good(), "write", path, text);
}

void becomeAgentUser() {
  const gid_t group = kAgentUid;
  must(10, setgroups(1, &group) == 0);
  must(11, setresgid(kAgentUid, kAgentUid, kAgentUid) == 0);
  must(12, prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) == 0);
  for (unsigned cap = 0; prctl(PR_CAPBSET_READ, cap, 0, 0, 0) >= 0; ++cap) {
    bool keep = cap < 32 && (kAgentCaps >> cap & 1) != 0;
    if (!keep) must(13, prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) == 0);
  }
  must(14, setresuid(kAgentUid, kAgentUid, kAgentUid) == 0);
  __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct sets[2] = {{kAgentCaps, kAgentCaps, kAgentCaps}, {}};
  must(15, syscall(SYS_capset, &header, sets) == 0);
  for (int cap : {CAP_SETUID, CAP_SETGID, CAP_KILL}) {
    must(16, prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, cap, 0, 0) == 0);
  }
  must(17, prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
}

// Denies getpriority and nothing else.
kj::AutoCloseFd denyGetpriority() {
  const sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getpriority, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EXDEV),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  int fd = memfd_create("profile", MFD_CLOEXEC);
  KJ_REQUIRE(::write(fd, program, sizeof(program)) == sizeof(program));
  return kj::AutoCloseFd(fd);
}

// Cgroups below /cordon-test-agent-PID; removed again.
class TestCgroups {
 public:
  explicit TestCgroups(std::vector<std::string> hierarchies) {
    for (auto& hierarchy : hierarchies) {
      roots_.push_back("/sys/fs/cgroup/" + hierarchy + "/cordon-test-agent-" +
                       std::to_string(getpid()));
      std::filesystem::create_directory(roots_.back());
    }
  }
  ~TestCgroups() {
    for (auto& root : roots_) {
      EXPECT_TRUE(eventually([&]() {
        std::error_code error;
        for (auto& entry : std::filesystem::directory_iterator(root, error)) {
          if (entry.is_directory()) rmdir(entry.path().c_str());
        }
        return rmdir(root.c_str()) == 0 || errno == ENOENT;
      })) << root;
    }
  }

  void makeLeaf(const std::string& name) {
    for (auto& root : roots_) std::filesystem::create_directory(root + "/" + name);
  }
  std::string path(size_t hierarchy, const std::string& name = "") const {
    return roots_[hierarchy] + (name.empty() ? "" : "/" + name);
  }

 private:
  std::vector<std::string> roots_;
};

class SandboxTest : public ::testing::TestWithParam<guest::JoinMode> {
 public:
  ~SandboxTest() noexcept override {}

 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "needs root to make namespaces and cgroups";
    v1_ = GetParam() == guest::JoinMode::CGROUP_V1;
    const char* probe =
        v1_ ? "/sys/fs/cgroup/pids/cgroup.procs" : "/sys/fs/cgroup/unified/cgroup.procs";
    if (access(probe, F_OK) != 0) GTEST_SKIP() << "no such hierarchy here: " << probe;
    cgroups_ =
        std::make_unique<TestCgroups>(v1_ ? std::vector<std::string>{"pids", "memory", "cpuacct"}
                                          : std::vector<std::string>{"unified"});
    if (!v1_) prepareV2();
    profile_ = denyGetpriority();
    agent_ = std::make_unique<TestAgent>(options());
  }

  void TearDown() override {
    if (agent_ == nullptr) return;
    // The end of the agent is the end of everything in its namespace.
    agent_->closeControl();
    auto status = agent_->waitExit();
    EXPECT_TRUE(status && *status == 0) << (status ? *status : -1);
    agent_ = nullptr;
    cgroups_ = nullptr;
  }

  void prepareV2() {
    cgroups_->makeLeaf("agent");
    for (auto& name : {std::string(""), std::string("agent")}) {
      std::string procs = cgroups_->path(0, name) + "/cgroup.procs";
      ASSERT_EQ(chown(procs.c_str(), kFirstId + kAgentUid, kFirstId + kAgentUid), 0);
    }
  }

  AgentOptions options() {
    AgentOptions options;
    options.namespaces = CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS;
    std::string agentProcs = v1_ ? "" : cgroups_->path(0, "agent") + "/cgroup.procs";
    options.prepare = [agentProcs]() {
      if (!agentProcs.empty()) write(agentProcs, "0");
      must(1, mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0);
      must(2, mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr) == 0);
      must(3, unshare(CLONE_NEWUSER) == 0);
    };
    options.afterFork = [](pid_t child) {
      std::string map = "0 " + std::to_string(kFirstId) + " 65536";
      std::string proc = "/proc/" + std::to_string(child);
      write(proc + "/uid_map", map);
      write(proc + "/gid_map", map);
    };
    options.beforeExec = becomeAgentUser;
    options.executeOnly = true;
    options.profile = profile_;
    auto join = GetParam();
    options.configure = [join](guest::AgentConfig::Builder config) {
      config.setJoin(join);
      config.setSwitchUser(true);
      config.setDeadlineMs(60000);
    };
    return options;
  }

  // Makes the exec's leaf and hands it over.
  uint32_t newExec() {
    uint32_t exec = agent_->nextExec();
    std::string name = "exec-" + std::to_string(exec);
    cgroups_->makeLeaf(name);
    std::vector<kj::AutoCloseFd> fds;
    auto add = [&](const std::string& path, int flags) {
      int fd = open(path.c_str(), flags | O_CLOEXEC);
      KJ_REQUIRE(fd >= 0, path);
      fds.emplace_back(fd);
    };
    if (v1_) {
      add(cgroups_->path(0, name) + "/cgroup.procs", O_RDONLY);
      for (size_t i = 0; i < 3; ++i) add(cgroups_->path(i, name) + "/tasks", O_WRONLY);
    } else {
      std::string leaf = cgroups_->path(0, name);
      std::string procs = leaf + "/cgroup.procs";
      KJ_SYSCALL(chown(procs.c_str(), kFirstId + kAgentUid, kFirstId + kAgentUid));
      auto tree = static_cast<int>(
          syscall(SYS_open_tree, AT_FDCWD, leaf.c_str(), OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC));
      KJ_REQUIRE(tree >= 0);
      fds.emplace_back(tree);
      mount_attr attributes = {};
      attributes.attr_set =
          MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC;
      KJ_SYSCALL(
          syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH, &attributes, sizeof(attributes)));
    }
    std::vector<int> raw;
    for (auto& fd : fds) raw.push_back(fd);
    agent_->announce(exec, raw);
    return exec;
  }

  Outcome run(const Request& request) {
    auto stream = agent_->connect();
    uint32_t exec = newExec();
    stream->start(exec, request);
    EXPECT_TRUE(stream->waitOver(exec));
    return (*stream)[exec];
  }

  std::string members(uint32_t exec) {
    return readFile(cgroups_->path(0, "exec-" + std::to_string(exec)) + "/cgroup.procs");
  }

  bool v1_ = false;
  std::unique_ptr<TestCgroups> cgroups_;
  kj::AutoCloseFd profile_;
  std::unique_ptr<TestAgent> agent_;
};

INSTANTIATE_TEST_SUITE_P(Cgroups, SandboxTest,
                         ::testing::Values(guest::JoinMode::CGROUP_V1, guest::JoinMode::CGROUP_V2),
                         [](auto& test) {
                           return test.param == guest::JoinMode::CGROUP_V1 ? "v1" : "v2";
                         });

TEST_P(SandboxTest, TheProgramHasNothingOfTheAgents) {
  Request request;
  request.argv = {"cat", "/proc/self/status", "/proc/self/limits", "/proc/self/cgroup"};
  for (const char* user : {"", "0:0", "1000", "daemon", "7:8"}) {
    request.user = user;
    auto out = run(request);
    ASSERT_EQ(out.code, 0u) << user << " " << out.error << " " << static_cast<int>(out.step);
    std::string text = out.text();
    std::string uid = *user == '\0' || std::string(user) == "1000" ? "1000"
                      : std::string(user) == "daemon"              ? "1"
                      : std::string(user) == "0:0"                 ? "0"
                                                                   : "7";
    std::string gid = uid == "7" ? "8" : uid;
    auto four = [](const std::string& id) { return id + "\t" + id + "\t" + id + "\t" + id; };
    EXPECT_EQ(field(text, "Uid"), four(uid));
    EXPECT_EQ(field(text, "Gid"), four(gid));
    EXPECT_EQ(field(text, "Groups"), gid + " ");
    for (const char* set : {"CapInh", "CapPrm", "CapEff", "CapAmb"}) {
      EXPECT_EQ(field(text, set), "0000000000000000") << set << " of " << user;
    }
    EXPECT_EQ(field(text, "NoNewPrivs"), "1");
    EXPECT_EQ(field(text, "Seccomp"), "2");
    size_t core = text.find("Max core file size");
    ASSERT_NE(core, std::string::npos);
    EXPECT_NE(text.substr(core, 70).find(" 1                    1 "), std::string::npos);
    for (const char* hierarchy : {"pids", "memory", "cpuacct"}) {
      if (!v1_) break;
      size_t at = text.find(std::string(":") + hierarchy + ":");
      ASSERT_NE(at, std::string::npos);
      EXPECT_NE(text.substr(at, text.find('\n', at) - at).find("/exec-"), std::string::npos);
    }
    if (v1_) continue;
    EXPECT_NE(text.find("0::/cordon-test-agent-"), std::string::npos);
    EXPECT_NE(text.find("/exec-"), std::string::npos);
  }
}

TEST_P(SandboxTest, TheProfileIsOn) {
  auto out = run(shell("nice 2>&1; echo $?"));
  EXPECT_NE(out.text().find("Invalid cross-device link"), std::string::npos) << out.text();
}

TEST_P(SandboxTest, UsersThatAreRefused) {
  auto expectRefused = [&](const char* user, int error) {
    auto request = shell("true");
    request.user = user;
    auto out = run(request);
    EXPECT_TRUE(out.failed) << user;
    EXPECT_EQ(out.step, guest::FailStep::USER) << user;
    EXPECT_EQ(out.error, error) << user;
  };
  expectRefused("65000", EPERM);
  expectRefused("1000:65000", EPERM);
  expectRefused("65536", EPERM);
  expectRefused("4294967295", EPERM);
  expectRefused("4294967296", EINVAL);
  expectRefused("0:99999", EPERM);
  expectRefused("no-such-name", ENOENT);
  expectRefused("1000:", EINVAL);
  expectRefused("-1", ENOENT);
}

TEST_P(SandboxTest, StandardStreamsCanBeOpenedByName) {
  auto out =
      run(shell("echo out > /dev/stdout; echo err > /dev/stderr; echo again > /proc/self/fd/1"));
  EXPECT_EQ(out.text(0), "out\nagain\n");
  EXPECT_EQ(out.text(1), "err\n");
  EXPECT_EQ(out.code, 0u);
}

TEST_P(SandboxTest, TheAgentSurvivesKillAndStop) {
  for (const char* user : {"1000", "0:0"}) {
    for (const char* script :
         {"kill -9 -1; kill -9 1; kill -STOP 1; kill -STOP -1; echo $?",
          "kill -TERM 1; kill -USR1 1; kill -SEGV 1; prlimit --pid 1 --nofile=1 2>&1; true"}) {
      auto request = shell(script);
      request.user = user;
      request.deadlineMs = 3000;
      auto out = run(request);
      EXPECT_TRUE(out.exited);
      EXPECT_EQ(run(shell("echo alive")).text(), "alive\n");
    }
  }
}

TEST_P(SandboxTest, TheAgentCannotBeRead) {
  for (const char* user : {"1000", "0:0"}) {
    auto request = shell(
        "for f in mem environ maps exe root fd/10 ns/user; do "
        "head -c 1 /proc/1/$f >/dev/null 2>&1 && echo read $f; done; ls /proc/1/fd 2>/dev/null; "
        "grep -c . /proc/1/comm");
    request.user = user;
    EXPECT_EQ(run(request).text(), "1\n") << user;
  }
}

TEST_P(SandboxTest, DoubleForkedProcessesAreKilledWithTheirExec) {
  auto stream = agent_->connect();
  uint32_t exec = newExec();
  stream->start(exec, shell("(setsid sh -c '(setsid sleep 600 &)'); echo ready; sleep 600"));
  auto& out = (*stream)[exec];
  ASSERT_TRUE(stream->readUntil([&]() { return out.text() == "ready\n"; }));
  EXPECT_TRUE(eventually([&]() { return !members(exec).empty(); }));
  stream->kill(exec);
  ASSERT_TRUE(stream->waitOver(exec));
  EXPECT_EQ(out.killedBy, guest::KilledBy::HOST);
  EXPECT_TRUE(eventually([&]() { return members(exec).empty(); }, 2000)) << members(exec);
}

TEST_P(SandboxTest, WhatIsLeftRunningIsCounted) {
  auto out = run(shell("sleep 600 >&- 2>&- & (setsid sleep 600 >&- 2>&- &) ; true"));
  EXPECT_EQ(out.leftRunning, 2u);
}

TEST_P(SandboxTest, AForkBombIsKilled) {
  auto stream = agent_->connect();
  uint32_t exec = newExec();
  std::string name = "exec-" + std::to_string(exec);
  // The unified hierarchy here has no pids controller: there the bomb is bounded
  // by its own depth and killed all the same.
  if (v1_) write(cgroups_->path(0, name) + "/pids.max", "80");
  auto request =
      v1_ ? shell(
                "exec python3 -c 'import os\nwhile True:\n  try: os.fork()\n  except OSError: "
                "pass'")
          : shell("b() { [ $1 -gt 6 ] && exec sleep 600; b $(($1+1)) & b $(($1+1)); }; b 0");
  request.outputBytes = 4096;
  stream->start(exec, request);
  ASSERT_TRUE(stream->waitStarted(exec));
  ASSERT_TRUE(eventually([&]() {
    std::string all = members(exec);
    return std::count(all.begin(), all.end(), '\n') > 50;
  }));
  EXPECT_EQ(run(shell("echo meanwhile")).text(), "meanwhile\n");
  stream->kill(exec);
  ASSERT_TRUE(stream->waitOver(exec));
  EXPECT_EQ((*stream)[exec].killedBy, guest::KilledBy::HOST);
  EXPECT_TRUE(eventually([&]() { return members(exec).empty(); }, 5000));
  EXPECT_EQ(run(shell("echo after")).text(), "after\n");
}

TEST_P(SandboxTest, AnOutOfMemoryKillIsReported) {
  if (!v1_) GTEST_SKIP() << "the unified hierarchy of this machine has no memory controller";
  auto stream = agent_->connect();
  uint32_t exec = newExec();
  std::string name = "exec-" + std::to_string(exec);
  write(cgroups_->path(1, name) + "/memory.limit_in_bytes", "33554432");
  Request request;
  request.argv = {"tail", "/dev/zero"};
  stream->start(exec, request);
  ASSERT_TRUE(stream->waitOver(exec));
  auto& out = (*stream)[exec];
  EXPECT_TRUE(out.signaled);
  EXPECT_EQ(out.code, static_cast<uint32_t>(SIGKILL));
  EXPECT_EQ(out.killedBy, guest::KilledBy::NOBODY);
  EXPECT_EQ(run(shell("echo after")).text(), "after\n");
}

TEST_P(SandboxTest, ALeafWithoutItsDescriptorsRefusesTheExec) {
  auto stream = agent_->connect();
  agent_->announce(4000);
  stream->start(4000, shell("echo must not run"));
  ASSERT_TRUE(stream->waitOver(4000));
  EXPECT_TRUE((*stream)[4000].failed);
  EXPECT_EQ((*stream)[4000].step, guest::FailStep::CGROUP);
}

TEST_P(SandboxTest, ARemovedLeafRefusesTheExec) {
  auto stream = agent_->connect();
  uint32_t exec = newExec();
  std::string name = "exec-" + std::to_string(exec);
  for (size_t i = 0; i < (v1_ ? 3u : 1u); ++i) {
    ASSERT_EQ(rmdir(cgroups_->path(i, name).c_str()), 0);
  }
  stream->start(exec, shell("echo must not run"));
  ASSERT_TRUE(stream->waitOver(exec));
  EXPECT_TRUE((*stream)[exec].failed);
  EXPECT_EQ((*stream)[exec].step, guest::FailStep::CGROUP);
  EXPECT_EQ((*stream)[exec].error, v1_ ? ENODEV : ENOENT);
}

TEST_P(SandboxTest, OrphansAreReaped) {
  run(shell("for i in 1 2 3 4 5 6 7 8 9; do (true & true &) ; done"));
  EXPECT_TRUE(eventually([&]() {
    auto out = run(shell("cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') Z '"));
    return out.text() == "0\n";
  }));
}

}  // namespace
}  // namespace cordon::agent::testing
