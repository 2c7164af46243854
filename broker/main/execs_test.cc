// Execs: their leaves, their CPU time, and how they end.
#include <gtest/gtest.h>
#include <kj/debug.h>

#include <vector>

#include "broker/main/lifecycle_fixture.h"

namespace cordon::broker {
namespace {

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
