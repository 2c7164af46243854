// The whole agent as on `host`: no cgroups, no other user.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <kj/debug.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <string>

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

// ---- Output --------------------------------------------------------------

TEST(Agent, OutputIsExact) {
  TestAgent agent;
  // Every line has its number, so a lost or doubled byte shows.
  auto out = agent.run(shell("seq 1 300000"));
  std::string expected;
  for (int i = 1; i <= 300000; ++i) expected += std::to_string(i) + "\n";
  EXPECT_TRUE(out.text() == expected);
  EXPECT_EQ(out.total[0], expected.size());
  EXPECT_FALSE(out.overlapping);
}

TEST(Agent, HeadAndTailAreKept) {
  std::string all;
  for (int i = 1; i <= 300000; ++i) all += std::to_string(i) + "\n";
  TestAgent agent;
  for (uint64_t cap : {uint64_t{1}, uint64_t{3}, uint64_t{1000}, uint64_t{200000},
                       uint64_t{all.size() - 1}, uint64_t{all.size()}, uint64_t{all.size() + 1}}) {
    auto request = shell("seq 1 300000");
    request.outputBytes = cap;
    auto out = agent.run(request);
    uint64_t tail = std::min<uint64_t>(cap / 4, 32768);
    EXPECT_EQ(out.total[0], all.size()) << cap;
    uint64_t dropped = cap >= all.size() ? 0 : all.size() - cap;
    EXPECT_EQ(out.dropped[0], dropped) << cap;
    std::string expected =
        dropped == 0 ? all : all.substr(0, cap - tail) + all.substr(all.size() - tail);
    EXPECT_TRUE(out.text() == expected) << cap;
    for (auto& [offset, bytes] : out.chunks[0]) {
      EXPECT_TRUE(all.compare(offset, bytes.size(), bytes) == 0) << cap << " at " << offset;
    }
    EXPECT_FALSE(out.overlapping);
  }
}

TEST(Agent, OutputInBulkIsExactAndNotCopied) {
  std::string all;
  for (int i = 1; i <= 1500000; ++i) all += std::to_string(i) + "\n";
  TestAgent agent;
  std::ofstream(agent.workDir() + "/all") << all;
  // Both streams at once, in writes of all sizes, and a client that is late.
  auto stream = agent.connect();
  agent.announce(1);
  stream->start(1, shell("dd if=all bs=64K status=none & dd if=all bs=100001 status=none >&2 & "
                         "wait"));
  ASSERT_TRUE(stream->waitStarted(1));
  usleep(50000);
  ASSERT_TRUE(stream->waitOver(1));
  auto& out = (*stream)[1];
  EXPECT_TRUE(out.text(0) == all);
  EXPECT_TRUE(out.text(1) == all);
  EXPECT_FALSE(out.overlapping);
  EXPECT_EQ(out.dropped[0] + out.dropped[1] + out.left[0] + out.left[1], 0u);

  // The thread's own: what is told of a process counts its dead children's too.
  std::string pid = std::to_string(agent.pid());
  auto readSoFar = [&]() {
    return std::stoull(field(readFile("/proc/" + pid + "/task/" + pid + "/io"), "rchar"));
  };
  uint64_t before = readSoFar();
  auto capped = shell("dd if=all bs=64K status=none");
  capped.outputBytes = 8 << 20;
  auto head = agent.run(capped);
  EXPECT_TRUE(head.text(0) == all.substr(0, (8 << 20) - 32768) + all.substr(all.size() - 32768));
  EXPECT_EQ(head.total[0], all.size());
  // What is past the cap has to be read.
  EXPECT_LT(readSoFar() - before, all.size() - (8 << 20) + (2 << 20));
}

TEST(Agent, OutputIsBytes) {
  TestAgent agent;
  auto out = agent.run(shell("printf '\\000\\377\\200\\n'"));
  EXPECT_EQ(out.text(), std::string("\0\377\200\n", 4));
}

#ifdef __SANITIZE_ADDRESS__
constexpr size_t kMostResidentKb = 64 * 1024;  // mostly the sanitizer's own
#else
constexpr size_t kMostResidentKb = 8 * 1024;
#endif

TEST(Agent, AClientThatDoesNotReadStopsTheProgram) {
  TestAgent agent;
  auto stream = agent.connect();
  agent.announce(1);
  stream->start(1, shell("yes | head -c 200000000"));
  ASSERT_TRUE(stream->waitStarted(1));
  auto status = [&]() { return readFile("/proc/" + std::to_string(agent.pid()) + "/status"); };
  auto rss = [&]() { return std::stoul(field(status(), "VmRSS")); };
  // Until the program is stopped by its pipe: then the agent sleeps as well.
  std::string before;
  EXPECT_TRUE(eventually([&]() {
    std::string now = field(status(), "voluntary_ctxt_switches");
    bool still = now == before;
    before = now;
    usleep(100000);
    return still;
  }));
  size_t resident = rss();
  EXPECT_LT(resident, kMostResidentKb);
  // Others are served meanwhile, and the exec can be killed.
  EXPECT_EQ(agent.run(shell("echo hello")).text(), "hello\n");
  EXPECT_LT(rss(), resident + 1024);
  stream->kill(1);
  ASSERT_TRUE(stream->waitOver(1));
  EXPECT_EQ((*stream)[1].killedBy, guest::KilledBy::HOST);
  EXPECT_EQ((*stream)[1].text().size(), (*stream)[1].total[0]);
  EXPECT_GT((*stream)[1].total[0], 0u);
}

TEST(Agent, ASlowClientGetsEverything) {
  TestAgent agent;
  auto stream = agent.connect();
  agent.announce(1);
  stream->start(1, shell("head -c 3000000 /dev/zero; head -c 3000000 /dev/zero >&2"));
  ASSERT_TRUE(stream->waitStarted(1));
  usleep(100000);
  ASSERT_TRUE(stream->waitOver(1));
  EXPECT_EQ((*stream)[1].text(0).size(), 3000000u);
  EXPECT_EQ((*stream)[1].text(1).size(), 3000000u);
}

TEST(Agent, AGrandchildThatHoldsThePipeDoesNotHoldTheExec) {
  TestAgent agent;
  auto out = agent.run(shell("sleep 600 & echo $!; echo main"));
  ASSERT_TRUE(out.exited);
  EXPECT_EQ(out.leftRunning, 1u);
  EXPECT_EQ(out.killedBy, guest::KilledBy::NOBODY);
  EXPECT_NE(out.text().find("main\n"), std::string::npos);
  auto pid = static_cast<pid_t>(std::stoi(out.text()));
  // It stays until the sandbox ends.
  EXPECT_TRUE(alive(pid));
  agent.closeControl();
  EXPECT_TRUE(agent.waitExit());
  EXPECT_TRUE(eventually([&]() { return !alive(pid); }));
}

TEST(Agent, WhatAFloodingGrandchildWritesIsCountedAsLeft) {
  TestAgent agent;
  auto out = agent.run(shell("(yes) & sleep 0.2"));
  ASSERT_TRUE(out.exited);
  EXPECT_EQ(out.text().size(), out.total[0]);
  EXPECT_EQ(out.dropped[0], 0u);
  EXPECT_FALSE(out.overlapping);
}

// ---- Input ---------------------------------------------------------------

TEST(Agent, StdinFlowsWithinItsCredit) {
  TestAgent agent;
  auto stream = agent.connect();
  agent.announce(1);
  Request request;
  request.argv = {"cat"};
  request.stdin = true;
  stream->start(1, request);
  std::string all;
  for (int i = 0; i < 200000; ++i) all += std::to_string(i) + ",";
  auto& out = (*stream)[1];
  size_t sent = 0;
  while (sent < all.size()) {
    size_t credit = guest::STDIN_WINDOW + out.credit - sent;
    if (credit == 0) {
      ASSERT_TRUE(stream->readUntil(
          [&]() { return guest::STDIN_WINDOW + out.credit > sent || out.over(); }));
      ASSERT_FALSE(out.over());
      continue;
    }
    size_t n = std::min({credit, all.size() - sent, size_t{50000}});
    stream->stdin(1, all.substr(sent, n));
    sent += n;
  }
  stream->closeStdin(1);
  ASSERT_TRUE(stream->waitOver(1));
  EXPECT_EQ(out.code, 0u);
  EXPECT_TRUE(out.text() == all);
}

TEST(Agent, MoreStdinThanCreditEndsTheStream) {
  TestAgent agent;
  auto stream = agent.connect();
  agent.announce(1);
  auto request = shell("sleep 600");
  request.stdin = true;
  stream->start(1, request);
  ASSERT_TRUE(stream->waitStarted(1));
  for (int i = 0; i < 4; ++i) stream->stdin(1, std::string(50000, 'x'));
  EXPECT_TRUE(stream->waitClosed());
  EXPECT_EQ(agent.run(shell("echo still here")).text(), "still here\n");
}

TEST(Agent, StdinForAProgramThatDoesNotRead) {
  TestAgent agent;
  auto stream = agent.connect();
  agent.announce(1);
  auto request = shell("exec 0<&-; echo closed; sleep 600");
  request.stdin = true;
  stream->start(1, request);
  auto& out = (*stream)[1];
  ASSERT_TRUE(stream->readUntil([&]() { return out.text() == "closed\n"; }));
  uint64_t sent = 0;
  for (int i = 0; i < 20; ++i) {
    stream->stdin(1, std::string(60000, 'x'));
    sent += 60000;
    ASSERT_TRUE(stream->readUntil([&]() { return out.credit == sent || out.over(); }));
    ASSERT_FALSE(out.over());
  }
  stream->closeStdin(1);
  stream->kill(1);
  EXPECT_TRUE(stream->waitOver(1));
}

TEST(Agent, LeftOversAreBounded) {
  TestAgent agent;
  std::vector<pid_t> pids;
  for (int i = 0; i < 80; ++i) {
    auto out = agent.run(shell("sleep 600 >&- 2>&- & echo $!"));
    ASSERT_EQ(out.leftRunning, 1u);
    pids.push_back(static_cast<pid_t>(std::stoi(out.text())));
  }
  EXPECT_TRUE(eventually([&]() { return std::count_if(pids.begin(), pids.end(), alive) <= 65; }));
  // The newest stay.
  EXPECT_TRUE(alive(pids.back()));
  EXPECT_FALSE(alive(pids.front()));
}

// ---- Signals and killing -------------------------------------------------

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

// ---- Hostile and broken peers ---------------------------------------------

TEST(Agent, MalformedFramesCloseTheirStreamAlone) {
  TestAgent agent;
  auto good = agent.connect();
  agent.announce(1);
  good->start(1, shell("read x; echo ok"));
  ASSERT_TRUE(good->waitStarted(1));

  auto header = [](uint32_t length, uint32_t magic) {
    std::string bytes(8, '\0');
    memcpy(bytes.data(), &length, 4);
    memcpy(bytes.data() + 4, &magic, 4);
    return bytes;
  };
  std::vector<std::string> hostile = {
      std::string(64, 'x'),
      header(0, ipc::kFrameMagic),
      header(7, ipc::kFrameMagic),
      header(guest::MAX_START_BYTES + 8, ipc::kFrameMagic),
      header(16, ipc::kFrameMagic) + std::string(16, '\xff'),
      // An `output`-like message: unknown to the agent, or not a start though long.
      header(8, ipc::kFrameMagic) + std::string(8, '\0'),
  };
  for (auto& bytes : hostile) {
    auto stream = agent.connect();
    ASSERT_TRUE(stream->waitHello());
    stream->sendRaw(bytes);
    EXPECT_TRUE(stream->waitClosed());
  }
  // Too long for anything but a start.
  auto stream = agent.connect();
  ASSERT_TRUE(stream->waitHello());
  stream->stdin(9, std::string(guest::MAX_FRAME_BYTES, 'x'));
  EXPECT_TRUE(stream->waitClosed());
  // No such signal.
  stream = agent.connect();
  stream->signal(9, 65);
  EXPECT_TRUE(stream->waitClosed());

  ASSERT_TRUE(good->waitOver(1));
  EXPECT_EQ((*good)[1].text(), "ok\n");
}

TEST(Agent, MessagesForNoExecAreIgnored) {
  TestAgent agent;
  auto stream = agent.connect();
  stream->stdin(77, "x");
  stream->closeStdin(77);
  stream->signal(77, 9);
  stream->kill(77);
  agent.announce(1);
  stream->start(1, shell("echo ok"));
  ASSERT_TRUE(stream->waitOver(1));
  EXPECT_EQ((*stream)[1].text(), "ok\n");
}

TEST(Agent, AnotherStreamsExecIsOutOfReach) {
  TestAgent agent;
  auto first = agent.connect();
  auto second = agent.connect();
  agent.announce(1);
  auto request = shell("cat; echo end");
  request.stdin = true;
  first->start(1, request);
  ASSERT_TRUE(first->waitStarted(1));
  second->kill(1);
  second->signal(1, SIGKILL);
  second->stdin(1, "intruder");
  second->closeStdin(1);
  agent.announce(2);
  second->start(2, shell("true"));
  ASSERT_TRUE(second->waitOver(2));
  first->stdin(1, "mine\n");
  first->closeStdin(1);
  ASSERT_TRUE(first->waitOver(1));
  EXPECT_EQ((*first)[1].text(), "mine\nend\n");
}

TEST(Agent, MalformedControlEndsTheAgent) {
  ipc::ControlHeader config = {ipc::ControlKind::kConfig, 0};
  std::string header(reinterpret_cast<const char*>(&config), sizeof(config));
  for (auto& first : {std::string("x"), std::string(8, '\0'), header, header + "garbage",
                      header + std::string(64, '\xff'), header + std::string(64, '\0')}) {
    AgentOptions options;
    options.sendConfig = false;
    TestAgent agent(kj::mv(options));
    agent.controlRaw(first);
    EXPECT_TRUE(agent.waitExit()) << first.size();
  }
  // A stream before the configuration, a second configuration, an unknown kind.
  {
    AgentOptions options;
    options.sendConfig = false;
    TestAgent agent(kj::mv(options));
    auto stream = agent.connect();
    EXPECT_TRUE(agent.waitExit());
  }
  for (uint32_t kind : {1u, 0u, 5u, 0xffffffffu}) {
    TestAgent agent;
    auto stream = agent.connect();
    ASSERT_TRUE(stream->waitHello());
    ipc::ControlHeader bad = {static_cast<ipc::ControlKind>(kind), 0};
    agent.controlRaw({reinterpret_cast<const char*>(&bad), sizeof(bad)});
    EXPECT_TRUE(agent.waitExit()) << kind;
  }
}

TEST(Agent, TooManyStreamsAreRefusedWithoutHarm) {
  TestAgent agent;
  std::vector<std::unique_ptr<TestStream>> streams;
  for (int i = 0; i < 64; ++i) {
    streams.push_back(agent.connect());
    ASSERT_TRUE(streams.back()->waitHello()) << i;
  }
  auto refused = agent.connect();
  EXPECT_TRUE(refused->waitClosed());
  streams.pop_back();
  EXPECT_TRUE(eventually([&]() {
    auto again = agent.connect();
    return again->waitHello();
  }));
}

TEST(Agent, AHostThatAsksAndNeverReadsIsDropped) {
  TestAgent agent;
  auto stream = agent.connect();
  ASSERT_TRUE(stream->waitHello());
  Request request;
  request.argv = {"true"};
  // Each is answered by `failed`, which nobody reads.
  for (int i = 0; i < 40000; ++i) stream->start(1000, request);
  EXPECT_TRUE(stream->waitClosed());
  EXPECT_EQ(agent.run(shell("echo ok")).text(), "ok\n");
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
