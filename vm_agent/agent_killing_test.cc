// The agent as on `host`: signals, and what is killed when.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <kj/debug.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <string>

#include "vm_agent/test_agent.h"

namespace cordon::agent::testing {
namespace {

TEST(Agent, SignalsReachMain) {
  TestAgent agent;
  auto stream = agent.connect();
  agent.announce(1);
  stream->start(1,
                shell("trap 'echo caught; exit 7' USR1; echo ready; while :; do sleep 0.01; done"));
  auto& out = (*stream)[1];
  ASSERT_TRUE(stream->readUntil([&]() { return out.text() == "ready\n"; }));
  stream->signal(1, SIGUSR1);
  ASSERT_TRUE(stream->waitOver(1));
  EXPECT_EQ(out.text(), "ready\ncaught\n");
  EXPECT_EQ(out.code, 7u);
  EXPECT_EQ(out.killedBy, guest::KilledBy::NOBODY);
}

TEST(Agent, TheDeadlineKillsEverything) {
  TestAgent agent;
  auto request = shell(
      "(setsid sleep 600 & echo $!); (setsid sh -c 'setsid sleep 600 & echo $!'); "
      "trap '' TERM; while :; do sleep 1; done");
  request.deadlineMs = 300;
  auto out = agent.run(request);
  ASSERT_TRUE(out.exited);
  EXPECT_TRUE(out.signaled);
  EXPECT_EQ(out.code, static_cast<uint32_t>(SIGKILL));
  EXPECT_EQ(out.killedBy, guest::KilledBy::DEADLINE);
  EXPECT_EQ(out.leftRunning, 0u);
  EXPECT_GE(out.wallUs, 300000u);
  pid_t first = 0, second = 0;
  ASSERT_EQ(sscanf(out.text().c_str(), "%d\n%d", &first, &second), 2) << out.text();
  // By the time it is told, it is so.
  EXPECT_FALSE(alive(first));
  EXPECT_FALSE(alive(second));
}

TEST(Agent, KillFindsDoubleForkedDaemons) {
  TestAgent agent;
  auto stream = agent.connect();
  agent.announce(1);
  stream->start(
      1, shell("(setsid sh -c 'sleep 600 & echo $!; exec >&- 2>&-; sleep 600' &) ; sleep 600"));
  auto& out = (*stream)[1];
  ASSERT_TRUE(stream->readUntil([&]() { return !out.text().empty(); }));
  auto daemon = static_cast<pid_t>(std::stoi(out.text()));
  EXPECT_TRUE(alive(daemon));
  stream->kill(1);
  ASSERT_TRUE(stream->waitOver(1));
  EXPECT_EQ(out.killedBy, guest::KilledBy::HOST);
  EXPECT_FALSE(alive(daemon));
}

TEST(Agent, KillOfAStoppedProgram) {
  TestAgent agent;
  auto stream = agent.connect();
  agent.announce(1);
  stream->start(1, shell("echo $$; kill -STOP $$; echo never"));
  auto& out = (*stream)[1];
  ASSERT_TRUE(stream->readUntil([&]() { return !out.text().empty(); }));
  stream->kill(1);
  ASSERT_TRUE(stream->waitOver(1));
  EXPECT_EQ(out.code, static_cast<uint32_t>(SIGKILL));
  EXPECT_EQ(out.text().find("never"), std::string::npos);
}

TEST(Agent, EofOfAStreamKillsItsExecsOnly) {
  TestAgent agent;
  auto first = agent.connect();
  auto second = agent.connect();
  agent.announce(1);
  agent.announce(2);
  first->start(1, shell("echo $$; (setsid sleep 600 & echo $!); sleep 600"));
  second->start(2, shell("echo ready; read line; echo done"));
  auto& out = (*first)[1];
  pid_t main = 0, daemon = 0;
  ASSERT_TRUE(first->readUntil(
      [&]() { return sscanf(out.text().c_str(), "%d\n%d\n", &main, &daemon) == 2; }));
  ASSERT_TRUE(second->waitStarted(2));
  first->close();
  EXPECT_TRUE(eventually([&]() { return !alive(main) && !alive(daemon); }));
  ASSERT_TRUE(second->waitOver(2));
  EXPECT_EQ((*second)[2].text(), "ready\ndone\n");
}

// Each exec's leaf lists a process that no kill removes, as one that hangs in the
// kernel is: killing them all may not keep the agent from the rest.
TEST(Agent, ManyKillsThatDoNotEndLeaveTimeForTheOthers) {
  constexpr uint32_t kStuck = 60, kOther = 100;
  AgentOptions options;
  options.configure = [](guest::AgentConfig::Builder config) {
    config.setJoin(guest::JoinMode::CGROUP_V1);
    config.setMaxExecs(64);
  };
  TestAgent agent(kj::mv(options));
  pid_t zombie;
  KJ_SYSCALL(zombie = fork());
  if (zombie == 0) _exit(0);
  auto file = [&](const char* name, const std::string& text, int flags) {
    std::string path = agent.workDir() + "/" + name;
    std::ofstream(path) << text;
    int fd;
    KJ_SYSCALL(fd = open(path.c_str(), flags | O_CLOEXEC), path);
    return kj::AutoCloseFd(fd);
  };
  auto stuck = file("stuck", std::to_string(zombie) + "\n", O_RDONLY);
  auto empty = file("empty", "", O_RDONLY);
  auto tasks = file("tasks", "", O_WRONLY);
  auto first = agent.connect();
  auto second = agent.connect();
  for (uint32_t i = 1; i <= kStuck; ++i) {
    agent.announce(i, {stuck.get(), tasks.get()});
    first->start(i, shell("exec sleep 600"));
    ASSERT_TRUE(first->waitStarted(i));
  }
  agent.announce(kOther, {empty.get(), tasks.get()});
  first->close();
  auto begin = std::chrono::steady_clock::now();
  second->start(kOther, shell("true"));
  ASSERT_TRUE(second->waitOver(kOther));
  auto took = std::chrono::steady_clock::now() - begin;
  EXPECT_TRUE((*second)[kOther].exited);
  EXPECT_LT(took, std::chrono::milliseconds(1500));
  waitpid(zombie, nullptr, 0);
}

TEST(Agent, EofOfTheControlSocketEndsEverything) {
  TestAgent agent;
  auto stream = agent.connect();
  agent.announce(1);
  stream->start(1, shell("echo $$; (setsid sleep 600 & echo $!); sleep 600"));
  auto& out = (*stream)[1];
  pid_t main = 0, daemon = 0;
  ASSERT_TRUE(stream->readUntil(
      [&]() { return sscanf(out.text().c_str(), "%d\n%d\n", &main, &daemon) == 2; }));
  agent.closeControl();
  ASSERT_TRUE(agent.waitExit());
  EXPECT_EQ(*agent.waitExit(), 0);
  EXPECT_FALSE(alive(main));
  EXPECT_FALSE(alive(daemon));
}

TEST(Agent, AKilledAgentTakesItsProgramsAlong) {
  TestAgent agent;
  auto stream = agent.connect();
  agent.announce(1);
  stream->start(1, shell("echo $$; (setsid sleep 600 & echo $!); sleep 600"));
  auto& out = (*stream)[1];
  pid_t main = 0, daemon = 0;
  ASSERT_TRUE(stream->readUntil(
      [&]() { return sscanf(out.text().c_str(), "%d\n%d\n", &main, &daemon) == 2; }));
  ASSERT_EQ(::kill(agent.pid(), SIGKILL), 0);
  ASSERT_TRUE(agent.waitExit());
  EXPECT_TRUE(eventually([&]() { return !alive(main) && !alive(daemon); }));
}

TEST(Agent, AKilledSubreaperIsNoWayOut) {
  TestAgent agent;
  auto stream = agent.connect();
  agent.announce(1);
  // The parent of main is its subreaper; on `host` it can be killed.
  stream->start(1, shell("(setsid sleep 600 & echo $!); echo $$; kill -9 $PPID; sleep 600"));
  auto& out = (*stream)[1];
  ASSERT_TRUE(stream->waitOver(1));
  EXPECT_TRUE(out.signaled);
  pid_t main = 0, daemon = 0;
  ASSERT_EQ(sscanf(out.text().c_str(), "%d\n%d", &daemon, &main), 2) << out.text();
  EXPECT_TRUE(eventually([&]() { return !alive(main) && !alive(daemon); }));
  EXPECT_EQ(agent.run(shell("echo fine")).text(), "fine\n");
}

TEST(Agent, ShutdownAndSigterm) {
  for (bool message : {true, false}) {
    TestAgent agent;
    auto stream = agent.connect();
    agent.announce(1);
    stream->start(1, shell("echo $$; sleep 600"));
    auto& out = (*stream)[1];
    ASSERT_TRUE(stream->readUntil([&]() { return !out.text().empty(); }));
    if (message) {
      stream->send([](guest::HostMessage::Builder m) { m.setShutdown(); });
    } else {
      ASSERT_EQ(::kill(agent.pid(), SIGTERM), 0);
    }
    auto status = agent.waitExit();
    ASSERT_TRUE(status);
    EXPECT_TRUE(WIFEXITED(*status) && WEXITSTATUS(*status) == 0);
    EXPECT_FALSE(alive(static_cast<pid_t>(std::stoi(out.text()))));
  }
}

}  // namespace
}  // namespace cordon::agent::testing
