// Guests that break the protocol, and a broker that goes away.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>

#include <atomic>
#include <functional>
#include <string>

#include "frontend/agents/agents_fixture.h"
#include "ipc/fdpass.h"

namespace cordon::agents {
namespace {

TEST_F(AgentsTest, HostileGuestsEndTheirCallOnly) {
  using Script = FakeBroker::Script;
  auto after = [](std::function<void(FakeGuest&)> more) {
    return [more](FakeGuest& guest) {
      guest.greet();
      guest.started();
      more(guest);
      guest.waitForKill();
    };
  };
  const std::pair<const char*, Script> scripts[] = {
      {"garbage instead of hello",
       [](FakeGuest& guest) {
         guest.raw(std::string(4096, '\xa5').data(), 4096);
         guest.waitForKill();
       }},
      {"another version",
       [](FakeGuest& guest) {
         guest.send([](auto message) { message.initHello().setVersion(77); });
         guest.waitForKill();
       }},
      {"hello twice",
       [](FakeGuest& guest) {
         guest.greet();
         guest.send([](auto message) { message.initHello().setVersion(1); });
         guest.waitForKill();
       }},
      {"started twice", after([](FakeGuest& guest) { guest.started(); })},
      {"another exec's end", after([](FakeGuest& guest) {
         guest.send([&](auto message) { message.initExited().setExec(guest.exec() + 1); });
       })},
      {"offsets backwards", after([](FakeGuest& guest) {
         guest.outputAt(0, 0, "abc");
         guest.outputAt(0, 2, "abc");
       })},
      {"empty output", after([](FakeGuest& guest) { guest.output(0, ""); })},
      {"credit without stdin", after([](FakeGuest& guest) { guest.credit(1); })},
      {"failed after started",
       after([](FakeGuest& guest) { guest.failed(guest::FailStep::EXEC, ENOENT); })},
      {"exit status 256", after([](FakeGuest& guest) { guest.exited(false, 256); })},
      {"fewer bytes than were sent", after([](FakeGuest& guest) {
         guest.output(0, "abc");
         guest.exited(false, 0, [](guest::Exited::Builder out) { out.getStdout().setTotal(2); });
       })},
      {"an oversized frame", after([](FakeGuest& guest) {
         const uint32_t header[2] = {guest::MAX_FRAME_BYTES + 8, ipc::kFrameMagic};
         guest.raw(header, sizeof header);
       })},
      {"a frame that is no message", after([](FakeGuest& guest) {
         const uint32_t frame[4] = {8, ipc::kFrameMagic, 0xffffffff, 0xffffffff};
         guest.raw(frame, sizeof frame);
       })},
  };
  auto id = acquire();
  int n = 0;
  for (auto& [what, script] : scripts) {
    broker_->setScript(script);
    auto outcome = exec(id, command({"prog"}));
    ++n;
    EXPECT_EQ(outcome.status.error_code(), grpc::StatusCode::INTERNAL) << what;
    EXPECT_EQ(outcome.reason, "GUEST_PROTOCOL") << what;
    EXPECT_FALSE(outcome.result) << what;
    EXPECT_EQ(broker_->killed, n) << what;
    EXPECT_EQ(broker_->ended, n) << what;
  }
  // We ended those streams: no broker need wait for an init that lives.
  EXPECT_EQ(broker_->streamsLost, 0);
  broker_->setScript([](FakeGuest& guest) {
    guest.greet();
    guest.exited(false, 0);
  });
  EXPECT_TRUE(exec(id, command({"prog"})).result);
}

TEST_F(AgentsTest, AGuestThatNeverAnswersIsGivenUp) {
  broker_->setScript([](FakeGuest& guest) {
    guest.greet();
    while (guest.waitForKill()) {
    }
  });
  auto outcome = exec(acquire(), command({"prog"}));
  EXPECT_EQ(outcome.status.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_EQ(outcome.reason, "GUEST_PROTOCOL");
  EXPECT_GE(broker_->killed, 1);
  EXPECT_EQ(broker_->streamsLost, 0);
}

// Its agent is well: the child it made is not the program yet, and dies.
TEST_F(AgentsTest, AProgramThatDoesNotGetToRunIsKilled) {
  broker_->setScript([](FakeGuest& guest) {
    guest.greet();
    guest.waitForKill();
    guest.exited(true, SIGKILL,
                 [](guest::Exited::Builder exited) { exited.setKilledBy(guest::KilledBy::HOST); });
  });
  auto outcome = exec(acquire(), command({"prog"}));
  EXPECT_EQ(outcome.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(outcome.reason, "START_TIMEOUT");
  EXPECT_EQ(broker_->killed, 0);
  EXPECT_EQ(broker_->ended, 1);
}

TEST_F(AgentsTest, AStreamThatEndsIsALostSandbox) {
  broker_->setScript([](FakeGuest& guest) {
    guest.greet();
    guest.started();
    guest.output(0, "abc");
  });
  auto outcome = exec(acquire(), command({"prog"}));
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  ASSERT_TRUE(outcome.result);
  EXPECT_EQ(outcome.result->status_case(), v1::Result::STATUS_NOT_SET);
  EXPECT_EQ(outcome.result->verdict().control(), v1::SANDBOX_LOST);
  EXPECT_EQ(outcome.out[0], "abc");
  EXPECT_EQ(broker_->killed, 1);
  EXPECT_EQ(broker_->streamsLost, 1);
}

TEST_F(AgentsTest, TheBrokerDiesAndReturns) {
  std::atomic<bool> told{false};
  broker_->setScript([&](FakeGuest& guest) {
    guest.greet();
    guest.started();
    guest.output(0, "x");
    told = guest.waitForKill();
  });
  auto id = acquire();
  grpc::ClientContext context;
  auto stream = execUnderWay(context, id);
  ASSERT_TRUE(stream);
  broker_.reset();
  auto outcome = collect(context, *stream);
  EXPECT_EQ(outcome.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(outcome.reason, "BROKER_LOST");
  {
    grpc::ClientContext listing;
    v1::ListResponse none;
    EXPECT_EQ(stub_->List(&listing, {}, &none).error_code(), grpc::StatusCode::UNAVAILABLE);
    EXPECT_EQ(agents::reason(listing), "BROKER_UNAVAILABLE");
  }
  broker_.emplace(dir_ + "/broker.sock");
  broker_->setScript(untilKilled);
  EXPECT_TRUE(eventually([&] {
    grpc::ClientContext again;
    v1::AcquireResponse acquired;
    return stub_->Acquire(&again, {}, &acquired).ok();
  }));
}

}  // namespace
}  // namespace cordon::agents
