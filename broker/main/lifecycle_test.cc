// Creation and Destruction: the order of effects, the undoing of each failure,
// and what is shared.
#include <gtest/gtest.h>
#include <kj/debug.h>

#include <string>

#include "broker/main/lifecycle_fixture.h"

namespace cordon::broker {
namespace {

TEST_F(LifecycleTest, TheProfileIsTheOneAskedFor) {
  for (const char* name : {"", "default", "tuned"}) {
    seccomp = name;
    auto answer = created();
    ASSERT_TRUE(answer.is<Created>());
    auto& sandbox = *answer.get<Created>().sandbox;
    ASSERT_NE(sandbox.profile, nullptr);
    EXPECT_EQ(sandbox.profile->name, seccomp.empty() ? "default" : seccomp);
    capnp::MallocMessageBuilder told;
    auto info = told.initRoot<rpc::SandboxInfo>();
    write(info, sandbox, io.unixEventPort.getTimer().now(), false);
    EXPECT_EQ(std::string(info.getSeccomp().getName().cStr()), sandbox.profile->name);
    EXPECT_EQ(info.getSeccomp().getCalls(), sandbox.profile->calls);
    if (seccomp == "tuned") {
      EXPECT_EQ(std::string(info.getIsolation().cStr()),
                "a test double, seccomp tuned (70 of 373 calls)");
    }
    destruction.destroy(sandbox, "test").wait(io.waitScope);
  }
}

TEST_F(LifecycleTest, AnUnknownProfileIsRefusedWithTheNamesThereAre) {
  seccomp = "unconfined";
  auto answer = created();
  ASSERT_TRUE(answer.is<Failure>());
  auto& why = answer.get<Failure>();
  EXPECT_EQ(why.code, rpc::Code::INVALID_ARGUMENT);
  EXPECT_EQ(why.reason, rpc::Reason::UNKNOWN_SECCOMP_PROFILE);
  EXPECT_EQ(why.subject, "seccomp");
  EXPECT_NE(why.detail.find("default, tuned"), std::string::npos) << why.detail;
  EXPECT_EQ(script.count("ledger.open"), 0u);
  seccomp = "a b";
  auto malformed = created();
  ASSERT_TRUE(malformed.is<Failure>());
  EXPECT_EQ(malformed.get<Failure>().reason, rpc::Reason::BAD_NAME);
}

TEST_F(LifecycleTest, WhatIsNoSandboxTakesNoProfile) {
  services.allowHostRuntime = true;
  script.isSandbox = false;
  seccomp = "default";
  auto answer = created();
  ASSERT_TRUE(answer.is<Failure>());
  EXPECT_EQ(answer.get<Failure>().reason, rpc::Reason::SECCOMP_NOT_APPLIED);
  seccomp = "";
  auto without = created();
  ASSERT_TRUE(without.is<Created>());
  auto& sandbox = *without.get<Created>().sandbox;
  EXPECT_EQ(sandbox.profile, nullptr);
  destruction.destroy(sandbox, "test").wait(io.waitScope);
}

TEST_F(LifecycleTest, TheRecordComesBeforeTheFirstEffectAndGoesAfterTheLast) {
  auto answer = created();
  ASSERT_TRUE(answer.is<Created>());
  EXPECT_LT(script.at("ledger.open"), script.at("cgroups.create"));
  EXPECT_LT(script.at("cgroups.create"), script.at("runtime.create"));
  // Configuration first, then the stream that shows readiness.
  EXPECT_LT(script.at("control 1"), script.at("control 2"));
  auto& sandbox = *answer.get<Created>().sandbox;
  auto receipt = destruction.destroy(sandbox, "test").wait(io.waitScope);
  EXPECT_TRUE(receipt.complete);
  EXPECT_LT(script.at("init.kill"), script.at("cgroups.kill"));
  EXPECT_LT(script.at("cgroups.kill"), script.at("runtime.cleanup"));
  EXPECT_LT(script.at("runtime.cleanup"), script.at("cgroups.remove"));
  EXPECT_LT(script.at("cgroups.remove"), script.at("ledger.close"));
  EXPECT_EQ(script.log.back(), "ledger.close");
  EXPECT_EQ(registry.size(), 0u);
}

TEST_F(LifecycleTest, ARefusedLedgerHasNoEffect) {
  script.ledgerRefuses = true;
  refusesAndUndoes(rpc::Reason::ID_RANGES_EXHAUSTED);
  EXPECT_TRUE(script.log.empty());
}

TEST_F(LifecycleTest, AnUnknownImageHasNoEffect) {
  image = "none";
  refusesAndUndoes(rpc::Reason::UNKNOWN_IMAGE);
  EXPECT_TRUE(script.log.empty());
}

TEST_F(LifecycleTest, ALimitThatDoesNotHoldRefuses) {
  script.limitDiffers = true;
  refusesAndUndoes(rpc::Reason::LIMIT_NOT_APPLIED);
  EXPECT_EQ(script.count("runtime.create"), 0u);
}

TEST_F(LifecycleTest, AFaultIsUndoneAndItsTextStaysHere) {
  script.cgroupsThrow = true;
  auto answer = created();
  ASSERT_TRUE(answer.is<Failure>());
  EXPECT_EQ(answer.get<Failure>().code, rpc::Code::INTERNAL);
  EXPECT_EQ(answer.get<Failure>().detail.find("as the test wants"), std::string::npos);
  EXPECT_EQ(script.count("ledger.close"), 1u);
  EXPECT_EQ(registry.size(), 0u);
}

// What was made of the cgroups before it failed is removed, too.
TEST_F(LifecycleTest, WithoutDescriptorsItIsTheHostsLimit) {
  script.outOfDescriptors = true;
  refusesAndUndoes(rpc::Reason::HOST_LIMIT);
  EXPECT_EQ(script.count("cgroups.remove"), 1u);
}

TEST_F(LifecycleTest, CgroupsOfAnotherAreNotRemoved) {
  script.nameTaken = true;
  refusesAndUndoes(rpc::Reason::LIMIT_NOT_APPLIED);
  EXPECT_EQ(script.count("cgroups.remove"), 0u);
}

TEST_F(LifecycleTest, ACoreOfItsOwnIsAskedForWhereTheKernelHasIt) {
  for (const char* why : {"", "SMT is off"}) {
    script.whyNoCore = why;
    auto answer = created();
    ASSERT_TRUE(answer.is<Created>());
    auto& sandbox = *answer.get<Created>().sandbox;
    bool there = *why == 0;
    EXPECT_EQ(script.coreAsked, there);
    EXPECT_EQ(sandbox.whyNoCore, why);
    EXPECT_EQ(sandbox.core.value, there ? 4711u : 0u);
    destruction.destroy(sandbox, "test").wait(io.waitScope);
  }
}

TEST_F(LifecycleTest, ACoreThatWasAskedForAndIsNotThereRefuses) {
  script.whyNoCore = "";
  script.coreCookie = 0;
  refusesAndUndoes(rpc::Reason::RUNTIME_FAILED);
}

TEST_F(LifecycleTest, WhatIsNoSandboxSharesItsCore) {
  services.allowHostRuntime = true;
  script.isSandbox = false;
  script.whyNoCore = "";
  auto answer = created();
  ASSERT_TRUE(answer.is<Created>());
  EXPECT_FALSE(script.coreAsked);
  destruction.destroy(*answer.get<Created>().sandbox, "test").wait(io.waitScope);
}

TEST_F(LifecycleTest, AFailingRuntimeIsUndone) {
  script.createFails = true;
  refusesAndUndoes(rpc::Reason::RUNTIME_FAILED);
}

TEST_F(LifecycleTest, AThrowingRuntimeIsUndone) {
  script.createThrows = true;
  refusesAndUndoes(rpc::Reason::NONE);
}

TEST_F(LifecycleTest, AnAgentThatEndsBeforeItGreetsIsUndone) {
  script.agentSilent = script.agentCloses = true;
  refusesAndUndoes(rpc::Reason::RUNTIME_FAILED);
}

TEST_F(LifecycleTest, AFrontendThatGoesMeanwhileTakesItAlong) {
  script.holdCreate = true;
  auto pending = create().eagerlyEvaluate(nullptr);
  while (script.held.get() == nullptr) kj::evalLater([] {}).wait(io.waitScope);
  peer->connected = false;
  script.held->fulfill();
  EXPECT_TRUE(pending.wait(io.waitScope).is<Failure>());
  EXPECT_EQ(registry.size(), 0u);
  EXPECT_EQ(script.count("ledger.close"), 1u);
}

TEST_F(LifecycleTest, ACallerThatDropsThePromiseDoesNotStopTheUndo) {
  script.holdCreate = script.createFails = true;
  {
    auto pending = create().eagerlyEvaluate(nullptr);
    while (script.held.get() == nullptr) kj::evalLater([] {}).wait(io.waitScope);
  }
  script.held->fulfill();
  creation.stop().wait(io.waitScope);
  EXPECT_EQ(registry.size(), 0u);
  EXPECT_EQ(script.count("ledger.close"), 1u);
}

TEST_F(LifecycleTest, StoppingUndoesWhatIsHalfMadeAndRefusesMore) {
  script.holdCreate = true;
  auto pending = create().eagerlyEvaluate(nullptr);
  while (script.held.get() == nullptr) kj::evalLater([] {}).wait(io.waitScope);
  auto stopped = creation.stop();
  script.held->fulfill();
  stopped.wait(io.waitScope);
  auto answer = pending.wait(io.waitScope);
  ASSERT_TRUE(answer.is<Failure>());
  EXPECT_EQ(answer.get<Failure>().reason, rpc::Reason::SHUTTING_DOWN);
  EXPECT_EQ(registry.size(), 0u);
  auto more = created();
  ASSERT_TRUE(more.is<Failure>());
  EXPECT_EQ(more.get<Failure>().reason, rpc::Reason::SHUTTING_DOWN);
}

TEST_F(LifecycleTest, WhatCannotBeRemovedIsNamedKeptAndRetried) {
  auto answer = created();
  ASSERT_TRUE(answer.is<Created>());
  auto sandbox = kj::mv(answer.get<Created>().sandbox);
  script.removePasses = 1'000'000;
  auto receipt = destruction.destroy(*sandbox, "test").wait(io.waitScope);
  EXPECT_FALSE(receipt.complete);
  ASSERT_EQ(receipt.left.size(), 1u);
  EXPECT_EQ(receipt.left[0].kind, "cgroup");
  EXPECT_EQ(receipt.left[0].error, EBUSY);
  for (auto& item : receipt.removed) EXPECT_NE(item.kind, "cgroup");
  EXPECT_EQ(script.log.back(), "ledger.update 1");
  EXPECT_EQ(script.count("ledger.close"), 0u);
  EXPECT_EQ(registry.size(), 1u);
  // The id range is still its own, and nobody can attach to it.
  EXPECT_TRUE(registry.attach(7, sandbox->name(), "") == nullptr);
  script.removePasses = 1;
  while (!sandbox->gone) {
    services.timer.afterDelay(10 * kj::MILLISECONDS).wait(io.waitScope);
  }
  EXPECT_EQ(script.count("ledger.close"), 1u);
  EXPECT_EQ(registry.size(), 0u);
}

TEST_F(LifecycleTest, ConcurrentDestroysAreOneAndALaterOneAnswersTheSame) {
  auto answer = created();
  ASSERT_TRUE(answer.is<Created>());
  auto sandbox = kj::mv(answer.get<Created>().sandbox);
  auto first = destruction.destroy(*sandbox, "one");
  auto second = destruction.destroy(*sandbox, "two");
  EXPECT_TRUE(first.wait(io.waitScope).complete);
  EXPECT_TRUE(second.wait(io.waitScope).complete);
  EXPECT_TRUE(destruction.destroy(*sandbox, "three").wait(io.waitScope).complete);
  EXPECT_EQ(script.count("ledger.close"), 1u);
}

TEST_F(LifecycleTest, AnInitThatDiesMakesItLost) {
  auto answer = created();
  ASSERT_TRUE(answer.is<Created>());
  auto sandbox = kj::mv(answer.get<Created>().sandbox);
  runtime->init->finish({true, 9});
  services.timer.afterDelay(1 * kj::MILLISECONDS).wait(io.waitScope);
  EXPECT_EQ(sandbox->entry.state, rpc::SandboxState::LOST);
  EXPECT_TRUE(destruction.destroy(*sandbox, "test").wait(io.waitScope).complete);
}

}  // namespace
}  // namespace cordon::broker
