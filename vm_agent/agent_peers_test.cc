// The agent as on `host`: hostile and broken peers.
#include <gtest/gtest.h>

#include <csignal>
#include <cstring>
#include <string>
#include <vector>

#include "vm_agent/test_agent.h"

namespace cordon::agent::testing {
namespace {

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
  // Far more than there are execs: those of ended ones may still be there.
  for (int i = 0; i < 512; ++i) {
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

}  // namespace
}  // namespace cordon::agent::testing
