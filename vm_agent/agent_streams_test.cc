// The agent as on `host`: a program's output and input.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <string>
#include <vector>

#include "vm_agent/test_agent.h"

namespace cordon::agent::testing {
namespace {

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

}  // namespace
}  // namespace cordon::agent::testing
