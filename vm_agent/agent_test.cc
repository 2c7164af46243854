// The whole agent as on `host`: no cgroups, no other user. How programs start
// and end, and the agent at rest.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <fstream>
#include <string>
#include <vector>

#include "vm_agent/test_agent.h"

namespace cordon::agent::testing {
namespace {

// ---- Starting and ending -------------------------------------------------

TEST(Agent, RunsAProgram) {
  TestAgent agent;
  auto out = agent.run(shell("echo out; echo err >&2; exit 3"));
  EXPECT_TRUE(out.started);
  ASSERT_TRUE(out.exited);
  EXPECT_FALSE(out.signaled);
  EXPECT_EQ(out.code, 3u);
  EXPECT_EQ(out.text(0), "out\n");
  EXPECT_EQ(out.text(1), "err\n");
  EXPECT_EQ(out.total[0], 4u);
  EXPECT_EQ(out.dropped[0] + out.left[0] + out.dropped[1] + out.left[1], 0u);
  EXPECT_EQ(out.killedBy, guest::KilledBy::NOBODY);
  EXPECT_EQ(out.leftRunning, 0u);
  EXPECT_GT(out.maxRssBytes, 100u * 1024);
  EXPECT_GT(out.wallUs, 0u);
  ASSERT_EQ(out.scratch.size(), 1u);
  EXPECT_EQ(out.scratch[0].first, agent.workDir());
  EXPECT_GT(out.scratch[0].second, 0u);
}

TEST(Agent, EnvironmentCwdAndStdinAreExactlyWhatWasAsked) {
  TestAgent agent;
  Request request;
  request.argv = {"/usr/bin/env"};
  request.env = {"A=1", "PATH=/bin", "B=x=y"};
  EXPECT_EQ(agent.run(request).text(), "A=1\nPATH=/bin\nB=x=y\n");
  EXPECT_EQ(agent.run(shell("pwd")).text(), agent.workDir() + "\n");
  ASSERT_EQ(mkdir((agent.workDir() + "/sub").c_str(), 0755), 0);
  auto relative = shell("pwd; cat | wc -c");
  relative.cwd = "sub";
  EXPECT_EQ(agent.run(relative).text(), agent.workDir() + "/sub\n0\n");
}

TEST(Agent, TheProgramInheritsNothingElse) {
  TestAgent agent;
  auto out = agent.run(
      shell("ls /proc/self/fd | wc -l; grep -E '^(SigBlk|SigIgn|SigCgt)' /proc/self/status; "
            "ulimit -c; ulimit -Hc; ps -o sid= -p $$ | tr -d ' ' | grep -qx $$ && echo leader"));
  // 0, 1, 2 and the directory itself.
  EXPECT_EQ(out.text().substr(0, 2), "4\n");
  EXPECT_NE(out.text().find("SigBlk:\t0000000000000000"), std::string::npos) << out.text();
  EXPECT_NE(out.text().find("SigIgn:\t0000000000000000"), std::string::npos) << out.text();
  EXPECT_NE(out.text().find("leader"), std::string::npos) << out.text();
  auto core = agent.run(shell("grep 'core file' /proc/self/limits"));
  EXPECT_NE(core.text().find("1                    1"), std::string::npos) << core.text();
}

TEST(Agent, SignalDeathsAreTold) {
  TestAgent agent;
  auto out = agent.run(shell("kill -SEGV $$"));
  EXPECT_TRUE(out.signaled);
  EXPECT_EQ(out.code, static_cast<uint32_t>(SIGSEGV));
  EXPECT_EQ(out.killedBy, guest::KilledBy::NOBODY);
}

TEST(Agent, FailedSteps) {
  TestAgent agent;
  auto expectFailed = [&](Request request, guest::FailStep step, int error) {
    auto out = agent.run(request);
    EXPECT_TRUE(out.failed) << request.argv[0];
    EXPECT_FALSE(out.started) << request.argv[0];
    EXPECT_EQ(out.step, step) << request.argv[0];
    EXPECT_EQ(out.error, error) << request.argv[0];
  };
  Request request;
  request.argv = {"no-such-program"};
  expectFailed(request, guest::FailStep::LOOKUP, ENOENT);
  request.argv = {""};
  expectFailed(request, guest::FailStep::LOOKUP, ENOENT);
  request.argv = {"/no/such/program"};
  expectFailed(request, guest::FailStep::EXEC, ENOENT);
  request.argv = {"/etc"};
  expectFailed(request, guest::FailStep::EXEC, EACCES);
  request.argv = {"/etc/passwd"};
  expectFailed(request, guest::FailStep::EXEC, EACCES);
  request.argv = {std::string(300, 'x')};
  expectFailed(request, guest::FailStep::LOOKUP, ENAMETOOLONG);
  request.argv = {"true"};
  request.cwd = "/no/such/dir";
  expectFailed(request, guest::FailStep::CWD, ENOENT);
  request.cwd = "/etc/passwd";
  expectFailed(request, guest::FailStep::CWD, ENOTDIR);
  request.cwd = "";
  request.user = "nobody-at-all";
  expectFailed(request, guest::FailStep::USER, EPERM);
  request.user = "";
  // A text without an interpreter line: no shell steps in.
  std::ofstream(agent.workDir() + "/script") << "echo hello\n";
  ASSERT_EQ(chmod((agent.workDir() + "/script").c_str(), 0755), 0);
  request.argv = {"./script"};
  expectFailed(request, guest::FailStep::EXEC, ENOEXEC);
  // PATH without an executable one, but with one that may not be run.
  ASSERT_EQ(chmod((agent.workDir() + "/script").c_str(), 0644), 0);
  request.argv = {"script"};
  request.env = {"PATH=/no/such:" + agent.workDir()};
  expectFailed(request, guest::FailStep::EXEC, EACCES);
  request.env = {"PATH="};
  expectFailed(request, guest::FailStep::EXEC, EACCES);
}

TEST(Agent, ExplainsNothingWithoutAProfile) {
  TestAgent agent;
  auto request = shell("true");
  request.explain = true;
  auto outcome = agent.run(request);
  EXPECT_TRUE(outcome.failed);
  EXPECT_EQ(outcome.step, guest::FailStep::SECCOMP);
  EXPECT_EQ(outcome.error, EOPNOTSUPP);
}

TEST(Agent, LimitsTooHighForTheHostAreRefused) {
  AgentOptions options;
  options.prepare = []() {
    rlimit low = {64, 64};
    setrlimit(RLIMIT_NOFILE, &low);
  };
  TestAgent agent(kj::mv(options));
  auto request = shell("ulimit -n");
  EXPECT_EQ(agent.run(request).text(), "64\n");
  request.files = 32;
  EXPECT_EQ(agent.run(request).text(), "32\n");
  request.files = 1000;
  auto out = agent.run(request);
  EXPECT_TRUE(out.failed);
  EXPECT_EQ(out.step, guest::FailStep::RLIMITS);
  EXPECT_EQ(out.error, EPERM);
}

TEST(Agent, CeilingsHoldAndAreTheDefault) {
  AgentOptions options;
  options.configure = [](guest::AgentConfig::Builder config) {
    config.setFileSizeBytes(1 << 20);
    config.setFiles(40);
    config.setCpuTimeMs(2500);
    config.setDeadlineMs(60000);
    config.setOutputBytes(1000);
    config.setDataBytes(512 << 20);
  };
  TestAgent agent(kj::mv(options));
  auto out = agent.run(shell("ulimit -n; ulimit -f; ulimit -St; ulimit -Ht; ulimit -d"));
  EXPECT_EQ(out.text(), "40\n2048\n3\n4\n524288\n");
  using Change = void (*)(Request&);
  for (Change change : std::initializer_list<Change>{
           [](Request& r) { r.fileSizeBytes = (1 << 20) + 1; }, [](Request& r) { r.files = 41; },
           [](Request& r) { r.cpuTimeMs = 2501; }, [](Request& r) { r.deadlineMs = 60001; },
           [](Request& r) { r.outputBytes = 1001; }}) {
    auto request = shell("true");
    change(request);
    auto refused = agent.run(request);
    EXPECT_TRUE(refused.failed);
    EXPECT_EQ(refused.step, guest::FailStep::REQUEST);
    EXPECT_EQ(refused.error, EPERM);
  }
}

TEST(Agent, ArgumentsHaveLimits) {
  TestAgent agent;
  auto expectRefused = [&](const Request& request, int error, const char* what) {
    auto out = agent.run(request);
    EXPECT_TRUE(out.failed) << what;
    EXPECT_EQ(out.step, guest::FailStep::REQUEST) << what;
    EXPECT_EQ(out.error, error) << what;
  };
  Request request;
  expectRefused(request, EINVAL, "empty argv");
  request.argv = {"echo", std::string("a\0b", 3)};
  expectRefused(request, EINVAL, "NUL");
  request.argv = {"echo", std::string(131072, 'x')};
  expectRefused(request, E2BIG, "string too long");
  request.argv = std::vector<std::string>(4097, "x");
  expectRefused(request, E2BIG, "too many");
  request.argv = std::vector<std::string>(9, std::string(120000, 'x'));
  expectRefused(request, E2BIG, "too long in all");
  request.argv = {"true"};
  request.env = {"NOEQUALS"};
  expectRefused(request, EINVAL, "env without =");
  request.env = {"=x"};
  expectRefused(request, EINVAL, "env without a name");
  request.env = {"PATH=/bin"};
  request.cwd = std::string("/tmp\0x", 6);
  expectRefused(request, EINVAL, "NUL in cwd");
  request.cwd = std::string(5000, 'x');
  expectRefused(request, E2BIG, "cwd too long");
  // As much as is allowed works.
  request = {};
  request.argv = std::vector<std::string>(8, std::string(120000, 'x'));
  request.argv[0] = "true";
  auto out = agent.run(request);
  EXPECT_TRUE(out.exited) << out.error;
}

TEST(Agent, ExecNumbersAreAnnouncedAndUsedOnce) {
  TestAgent agent;
  auto stream = agent.connect();
  stream->start(5, shell("true"));
  ASSERT_TRUE(stream->waitOver(5));
  EXPECT_TRUE((*stream)[5].failed);
  EXPECT_EQ((*stream)[5].error, EINVAL);
  agent.announce(6);
  stream->start(6, shell("true"));
  ASSERT_TRUE(stream->waitOver(6));
  EXPECT_TRUE((*stream)[6].exited);
  auto second = agent.connect();
  second->start(6, shell("true"));
  ASSERT_TRUE(second->waitOver(6));
  EXPECT_TRUE((*second)[6].failed);
  EXPECT_EQ((*second)[6].step, guest::FailStep::REQUEST);
  // Forgotten and announced anew it is another exec.
  agent.control(ipc::ControlKind::kForget, 6, {});
  agent.announce(6);
  auto third = agent.connect();
  third->start(6, shell("true"));
  ASSERT_TRUE(third->waitOver(6));
  EXPECT_TRUE((*third)[6].exited);
}

TEST(Agent, AtMostMaxExecsAtOnce) {
  AgentOptions options;
  options.configure = [](guest::AgentConfig::Builder config) { config.setMaxExecs(2); };
  TestAgent agent(kj::mv(options));
  auto stream = agent.connect();
  for (uint32_t i = 1; i <= 3; ++i) agent.announce(i);
  for (uint32_t i = 1; i <= 3; ++i) stream->start(i, shell("sleep 600"));
  ASSERT_TRUE(stream->waitOver(3));
  EXPECT_EQ((*stream)[3].error, EBUSY);
  stream->kill(1);
  ASSERT_TRUE(stream->waitOver(1));
  agent.announce(4);
  stream->start(4, shell("true"));
  ASSERT_TRUE(stream->waitOver(4));
  EXPECT_TRUE((*stream)[4].exited);
}

TEST(Agent, ManyAtOnce) {
  TestAgent agent;
  auto stream = agent.connect();
  for (uint32_t i = 1; i <= 10; ++i) {
    agent.announce(i);
    stream->start(
        i, shell("for j in 1 2 3 4 5; do head -c 50000 /dev/zero | tr '\\0' " +
                 std::string(1, static_cast<char>('a' + i)) + "; done; exit " + std::to_string(i)));
  }
  for (uint32_t i = 1; i <= 10; ++i) {
    ASSERT_TRUE(stream->waitOver(i));
    auto& out = (*stream)[i];
    EXPECT_EQ(out.code, i);
    EXPECT_TRUE(out.text() == std::string(250000, static_cast<char>('a' + i)));
    EXPECT_FALSE(out.overlapping);
  }
}

// ---- File limits and reports ----------------------------------------------

TEST(Agent, AFileAtTheLimitIsFound) {
  TestAgent agent;
  auto request = shell("mkdir -p a/b; ln -s /etc l; head -c 100000 /dev/zero > a/b/big");
  request.fileSizeBytes = 65536;
  auto out = agent.run(request);
  EXPECT_EQ(out.fileAtLimit, agent.workDir() + "/a/b/big");
  auto small = shell("rm a/b/big; echo x > a/b/small");
  small.fileSizeBytes = 65536;
  EXPECT_EQ(agent.run(small).fileAtLimit, "");
}

// ---- At rest ---------------------------------------------------------------

TEST(Agent, IdleCostsNothing) {
  TestAgent agent;
  agent.run(shell("head -c 1000000 /dev/zero"));
  auto stream = agent.connect();
  ASSERT_TRUE(stream->waitHello());
  std::string dir = "/proc/" + std::to_string(agent.pid());
  // It leaves the loop only when something happens.
  auto switches = [&]() { return field(readFile(dir + "/status"), "voluntary_ctxt_switches"); };
  std::string before;
  ASSERT_TRUE(eventually([&]() {
    std::string now = switches();
    bool still = now == before;
    before = now;
    // Longer than it waits before it gives memory back.
    usleep(400000);
    return still;
  }));
  usleep(500000);
  EXPECT_EQ(switches(), before);
#ifndef __SANITIZE_ADDRESS__
  // The agent is not dumpable: only root reads this.
  if (geteuid() != 0) return;
  std::string memory = readFile(dir + "/smaps_rollup");
  EXPECT_LT(std::stoul(field(memory, "Anonymous")), 150u) << memory;
#endif
}

}  // namespace
}  // namespace cordon::agent::testing
