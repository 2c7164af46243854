// Calls as they go when all is well, limits and cancelling, and the process
// itself. args: the executable.
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "frontend/agents/agents_fixture.h"

namespace cordon::agents {
namespace {

TEST_F(AgentsTest, ExecBringsOutputAndResult) {
  FakeGuest::Start seen;
  broker_->setScript([&](FakeGuest& guest) {
    auto start = guest.greet();
    ASSERT_TRUE(start);
    seen = *start;
    guest.started();
    guest.output(0, "hello ");
    guest.output(0, "world\n");
    guest.output(1, std::string("\xff\x00\x80", 3));
    guest.exited(false, 3, [](guest::Exited::Builder out) { out.setMaxRssBytes(12345); });
  });
  auto id = acquire();
  auto spec = command({"prog", "a b", std::string("\xfe")});
  spec.add_env("KEY=VALUE=X");
  spec.add_env("HOME=/elsewhere");
  spec.set_cwd("sub");
  spec.mutable_limits()->set_wall_ms(5000);
  auto outcome = exec(id, spec);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  ASSERT_TRUE(outcome.started && outcome.result);
  EXPECT_EQ(outcome.started->name(), id.substr(0, 13));
  EXPECT_EQ(outcome.out[0], "hello world\n");
  EXPECT_EQ(outcome.out[1], std::string("\xff\x00\x80", 3));
  EXPECT_EQ(outcome.result->exit_code(), 3);
  EXPECT_EQ(outcome.result->verdict().control(), v1::NONE);
  EXPECT_EQ(outcome.result->stdout().total(), 12u);
  EXPECT_EQ(outcome.result->stderr().total(), 3u);
  EXPECT_EQ(outcome.result->stdout().dropped(), 0u);
  EXPECT_EQ(outcome.result->usage().max_rss_bytes(), 12345u);
  EXPECT_GT(outcome.result->timings().exec_ms(), 0.0);

  EXPECT_EQ(seen.argv, (std::vector<std::string>{"prog", "a b", "\xfe"}));
  EXPECT_EQ(seen.cwd, "sub");
  EXPECT_TRUE(has(seen.env, "KEY=VALUE=X"));
  EXPECT_TRUE(has(seen.env, "HOME=/elsewhere"));
  EXPECT_FALSE(has(seen.env, "HOME=/work"));
  EXPECT_TRUE(has(seen.env, "LANG=C.UTF-8"));
  EXPECT_TRUE(has(seen.env, "USER=user"));
  EXPECT_TRUE(has(seen.env, "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"));
  EXPECT_EQ(seen.deadlineMs, 5500u);  // the backstop
  EXPECT_FALSE(seen.withStdin);
  EXPECT_EQ(broker_->begun, 1);
  EXPECT_EQ(broker_->ended, 1);
  EXPECT_EQ(broker_->killed, 0);
  EXPECT_EQ(broker_->inspected, 0);  // the limits came with the acquire
  EXPECT_EQ(broker_->lastAcquireUid, getuid());
}

TEST_F(AgentsTest, KernelCountersBecomeTheVerdict) {
  broker_->setCounters({{rpc::CounterKind::OOM_KILLS, 0, 1, "memory.oom_control oom_kill"}});
  broker_->setScript([](FakeGuest& guest) {
    guest.greet();
    guest.started();
    guest.exited(true, SIGKILL);
  });
  auto outcome = exec(acquire(), command({"prog"}));
  ASSERT_TRUE(outcome.result);
  EXPECT_EQ(outcome.result->signal(), SIGKILL);
  auto& verdict = outcome.result->verdict();
  EXPECT_EQ(verdict.control(), v1::MEMORY);
  EXPECT_TRUE(verdict.stopped());
  EXPECT_EQ(verdict.limit(), uint64_t{128} << 20);
  ASSERT_GE(verdict.evidence_size(), 1);
  EXPECT_EQ(verdict.evidence(0).counter().find("memory.oom_control"), 0u);
  EXPECT_EQ(verdict.evidence(0).before(), 0u);
  EXPECT_EQ(verdict.evidence(0).after(), 1u);
  EXPECT_EQ(verdict.evidence(0).source(), v1::KERNEL);
}

TEST_F(AgentsTest, RunReleasesBeforeItsResult) {
  broker_->setScript([](FakeGuest& guest) {
    guest.greet();
    guest.started();
    guest.output(0, "42\n");
    guest.exited(false, 0);
  });
  auto outcome = run({}, command({"prog"}));
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  ASSERT_TRUE(outcome.result);
  EXPECT_EQ(outcome.out[0], "42\n");
  EXPECT_TRUE(outcome.result->receipt().complete());
  EXPECT_EQ(outcome.result->receipt().removed_size(), 1);
  EXPECT_EQ(broker_->destroyed, 1);
  EXPECT_EQ(broker_->ended, 1);
}

TEST_F(AgentsTest, NotStartedIsAResult) {
  broker_->setScript([](FakeGuest& guest) {
    guest.greet();
    guest.failed(guest::FailStep::LOOKUP, ENOENT);
  });
  auto outcome = exec(acquire(), command({"nothing"}));
  ASSERT_TRUE(outcome.status.ok());
  ASSERT_TRUE(outcome.result && outcome.result->has_not_started());
  EXPECT_EQ(outcome.result->not_started().error_number(), ENOENT);
  EXPECT_EQ(outcome.result->not_started().step(), "lookup");
  EXPECT_EQ(outcome.result->verdict().control(), v1::NONE);
  EXPECT_FALSE(outcome.started);
  EXPECT_EQ(broker_->ended, 1);
}

// Echoes its stdin, giving credit for what it took.
void echo(FakeGuest& guest) {
  if (!guest.greet()) return;
  guest.started();
  bool open = true;
  while (open) {
    std::string bytes;
    bool more = guest.next([&](guest::HostMessage::Reader message) {
      if (message.isStdin()) {
        auto data = message.getStdin().getBytes();
        bytes.assign(reinterpret_cast<const char*>(data.begin()), data.size());
      } else if (message.isCloseStdin()) {
        open = false;
      }
    });
    if (!more) return;
    if (bytes.empty()) continue;
    guest.output(0, bytes);
    guest.credit(static_cast<uint32_t>(bytes.size()));
  }
  guest.exited(false, 0);
}

TEST_F(AgentsTest, StdinGoesInWithinTheCredit) {
  broker_->setScript(echo);
  auto spec = command({"cat"});
  spec.set_stdin(true);
  std::string all;
  std::vector<v1::ExecRequest> requests;
  for (int i = 0; i < 12; ++i) {
    v1::ExecRequest request;
    request.set_stdin(std::string(200'000, static_cast<char>('a' + i)));
    all += request.stdin();
    requests.push_back(request);
  }
  auto outcome = exec(acquire(), spec, requests);
  ASSERT_TRUE(outcome.result) << outcome.status.error_message();
  EXPECT_TRUE(outcome.out[0] == all);
  EXPECT_EQ(outcome.result->exit_code(), 0);
}

TEST_F(AgentsTest, SeveralExecsAtOnceInOneSandbox) {
  broker_->setScript(echo);
  auto id = acquire();
  std::vector<std::thread> threads;
  std::atomic<int> good{0};
  for (int i = 0; i < 12; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < 10; ++round) {
        auto spec = command({"cat"});
        spec.set_stdin(true);
        v1::ExecRequest request;
        request.set_stdin("I am " + std::to_string(i * 100 + round));
        auto outcome = exec(id, spec, {request});
        if (outcome.result && outcome.out[0] == request.stdin()) ++good;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(good, 120);
  EXPECT_EQ(broker_->begun, 120);
  EXPECT_EQ(broker_->ended, 120);
}

TEST_F(AgentsTest, SignalsReachTheProgram) {
  std::atomic<uint32_t> seen{0};
  broker_->setScript([&](FakeGuest& guest) {
    guest.greet();
    guest.started();
    guest.next([&](guest::HostMessage::Reader message) {
      if (message.isSignal()) seen = message.getSignal().getSigno();
    });
    guest.exited(true, SIGUSR1);
  });
  v1::ExecRequest request;
  request.set_signal(SIGUSR1);
  auto outcome = exec(acquire(), command({"prog"}), {request});
  ASSERT_TRUE(outcome.result);
  EXPECT_EQ(seen, static_cast<uint32_t>(SIGUSR1));
  EXPECT_EQ(outcome.result->signal(), SIGUSR1);
}

TEST_F(AgentsTest, AClientThatDoesNotReadStopsTheProgramAndMemoryStaysFlat) {
  constexpr uint64_t kTotal = 128 << 20;
  std::atomic<uint64_t> sent{0};
  broker_->setScript([&](FakeGuest& guest) {
    guest.greet();
    guest.started();
    std::string chunk(60 * 1024, 'x');
    while (sent < kTotal && guest.output(0, chunk)) sent += chunk.size();
    guest.exited(false, 0);
  });
  auto id = acquire();
  [[maybe_unused]] auto before = agents_->statusKb("VmRSS:");
  grpc::ClientContext context;
  auto stream = stub_->Exec(&context);
  stream->Write(startRequest(id, command({"flood"})));
  stream->WritesDone();
  // It stands still: nothing was sent for half a second.
  uint64_t seen = 0;
  auto since = steady_clock::now();
  ASSERT_TRUE(eventually([&] {
    if (sent != seen) {
      seen = sent;
      since = steady_clock::now();
    }
    return seen > 0 && steady_clock::now() - since > 500ms;
  }));
  EXPECT_LT(sent, kTotal / 8);
  uint64_t most = agents_->statusKb("VmRSS:");
  uint64_t received = 0;
  v1::ExecResponse response;
  std::optional<v1::Result> result;
  while (stream->Read(&response)) {
    if (response.has_result()) result = response.result();
    if (!response.has_output()) continue;
    ASSERT_EQ(response.output().offset(), received);
    if (received % (16 << 20) < response.output().data().size()) {
      most = std::max(most, agents_->statusKb("VmRSS:"));
    }
    received += response.output().data().size();
  }
  EXPECT_TRUE(stream->Finish().ok());
  ASSERT_TRUE(result);
  EXPECT_EQ(received, sent);
  EXPECT_EQ(result->stdout().total(), received);
#ifndef __SANITIZE_ADDRESS__
  // AddressSanitizer keeps what was freed.
  EXPECT_LT(most, before + 16 * 1024) << "KiB, from " << before;
#endif
}

TEST_F(AgentsTest, OutputPastTheCapIsCountedAndNotDelivered) {
  broker_->setScript([](FakeGuest& guest) {
    guest.greet();
    guest.started();
    for (int i = 0; i < 10; ++i) guest.output(0, std::string(1000, 'x'));
    guest.exited(false, 0);
  });
  auto spec = command({"flood"});
  spec.mutable_limits()->set_output_bytes(2500);
  auto outcome = exec(acquire(), spec);
  ASSERT_TRUE(outcome.result);
  EXPECT_EQ(outcome.out[0].size(), 2500u);
  EXPECT_EQ(outcome.result->stdout().total(), 10000u);
  EXPECT_EQ(outcome.result->stdout().dropped(), 7500u);
  EXPECT_EQ(outcome.result->verdict().control(), v1::OUTPUT);
}

TEST_F(AgentsTest, TheWallClockStopsIt) {
  broker_->setScript(untilKilled);
  auto spec = command({"sleep"});
  spec.mutable_limits()->set_wall_ms(200);
  auto outcome = exec(acquire(), spec);
  ASSERT_TRUE(outcome.result) << outcome.status.error_message();
  EXPECT_EQ(outcome.result->signal(), SIGKILL);
  EXPECT_EQ(outcome.result->verdict().control(), v1::WALL_CLOCK);
  EXPECT_TRUE(outcome.result->verdict().stopped());
  EXPECT_EQ(outcome.result->verdict().limit(), 200u);
  EXPECT_GE(outcome.result->timings().exec_ms(), 200.0);
  EXPECT_EQ(outcome.out[0], "running\n");
}

TEST_F(AgentsTest, TheBrokerKillsWhatTheAgentDoesNot) {
  broker_->setScript([&](FakeGuest& guest) {
    guest.greet();
    guest.started();
    // Deaf to `kill`, until the cgroup is killed.
    if (!eventually([&] { return broker_->killed > 0; })) return;
    guest.exited(true, SIGKILL);
  });
  auto spec = command({"sleep"});
  spec.mutable_limits()->set_wall_ms(100);
  auto outcome = exec(acquire(), spec);
  ASSERT_TRUE(outcome.result);
  EXPECT_EQ(outcome.result->verdict().control(), v1::WALL_CLOCK);
  EXPECT_EQ(broker_->killed, 1);
  EXPECT_GE(outcome.result->timings().exec_ms(), 2000.0);
}

TEST_F(AgentsTest, ADeadlineHoldsForAClientThatDoesNotRead) {
  std::atomic<bool> over{false};
  broker_->setScript([&](FakeGuest& guest) {
    guest.greet();
    guest.started();
    std::string chunk(60 * 1024, 'x');
    // As vm-agent does it: it stops at the kill that it finds between writes,
    // which our blocking double cannot; a second thread reads for it.
    std::atomic<bool> killed{false};
    std::thread reader([&] { killed = guest.waitForKill(); });
    while (!killed && guest.output(0, chunk)) {
    }
    guest.exited(true, SIGKILL,
                 [](guest::Exited::Builder out) { out.setKilledBy(guest::KilledBy::HOST); });
    reader.join();
    over = true;
  });
  auto id = acquire();
  grpc::ClientContext context;
  auto stream = stub_->Exec(&context);
  auto spec = command({"flood"});
  spec.mutable_limits()->set_wall_ms(500);
  stream->Write(startRequest(id, spec));
  EXPECT_TRUE(eventually([&] { return over && broker_->ended == 1; }));
  // The program ended although nobody read; who comes back at once gets what was
  // held, and the rest is counted.
  auto outcome = collect(context, *stream);
  ASSERT_TRUE(outcome.result) << outcome.status.error_message();
  EXPECT_EQ(outcome.result->verdict().control(), v1::WALL_CLOCK);
  EXPECT_GT(outcome.result->stdout().dropped(), 0u);
  EXPECT_EQ(outcome.result->stdout().total(),
            outcome.out[0].size() + outcome.result->stdout().dropped());
}

TEST_F(AgentsTest, CancellingKillsTheProgram) {
  std::atomic<bool> killed{false};
  broker_->setScript([&](FakeGuest& guest) {
    guest.greet();
    guest.started();
    guest.output(0, "x");
    killed = guest.waitForKill();
    guest.exited(true, SIGKILL);
  });
  auto id = acquire();
  grpc::ClientContext context;
  auto stream = execUnderWay(context, id);
  ASSERT_TRUE(stream);
  context.TryCancel();
  EXPECT_EQ(collect(context, *stream).status.error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(eventually([&] { return killed && broker_->ended == 1; }));
  EXPECT_EQ(broker_->destroyed, 0);
}

TEST_F(AgentsTest, ARunIsReleasedWhenItsClientVanishes) {
  broker_->setScript(untilKilled);
  auto channel = agents_->channel();
  {
    auto stub = v1::Agents::NewStub(channel);
    grpc::ClientContext context;
    auto stream = stub->Run(&context);
    v1::ExecRequest request;
    *request.mutable_run()->mutable_exec() = command({"sleep"});
    stream->Write(request);
    v1::ExecResponse response;
    ASSERT_TRUE(stream->Read(&response));
    context.TryCancel();
    stream->Finish();
  }
  EXPECT_TRUE(eventually([&] { return broker_->destroyed == 1 && broker_->ended == 1; }));
}

TEST_F(AgentsTest, AClientDeadlineKillsToo) {
  broker_->setScript(untilKilled);
  auto id = acquire();
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + 300ms);
  auto stream = stub_->Exec(&context);
  stream->Write(startRequest(id, command({"sleep"})));
  EXPECT_EQ(collect(context, *stream).status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(eventually([&] { return broker_->ended == 1; }));
}

TEST_F(AgentsTest, HealthAndReflectionAreOn) {
  grpc::GenericStub stub(agents_->channel());
  auto call = [&](const std::string& method, const std::string& request) {
    grpc::ClientContext context;
    grpc::CompletionQueue queue;
    auto stream = stub.PrepareCall(&context, method, &queue);
    void* tag;
    bool ok;
    stream->StartCall(nullptr);
    queue.Next(&tag, &ok);
    grpc::Slice slice(request);
    stream->WriteLast(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions(), nullptr);
    queue.Next(&tag, &ok);
    grpc::ByteBuffer response;
    stream->Read(&response, nullptr);
    queue.Next(&tag, &ok);
    grpc::Status status;
    stream->Finish(&status, nullptr);
    queue.Next(&tag, &ok);
    EXPECT_TRUE(status.ok()) << method << ": " << status.error_message();
    std::vector<grpc::Slice> slices;
    std::string bytes;
    if (response.Dump(&slices).ok()) {
      for (auto& s : slices) bytes.append(reinterpret_cast<const char*>(s.begin()), s.size());
    }
    return bytes;
  };
  EXPECT_EQ(call("/grpc.health.v1.Health/Check", ""), "\x08\x01");  // SERVING
  // list_services
  auto services = call("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                       std::string("\x3a\0", 2));
  EXPECT_NE(services.find("cordon.v1.Agents"), std::string::npos);
}

TEST_F(AgentsTest, SigtermEndsWhatIsUnderWayAndExitsZero) {
  broker_->setScript(untilKilled);
  grpc::ClientContext context;
  auto stream = stub_->Run(&context);
  v1::ExecRequest request;
  *request.mutable_run()->mutable_exec() = command({"sleep"});
  stream->Write(request);
  v1::ExecResponse response;
  ASSERT_TRUE(stream->Read(&response));
  std::thread client([&] { collect(context, *stream); });
  int status = agents_->stop();
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  client.join();
  EXPECT_EQ(broker_->destroyed, 1);
  EXPECT_EQ(broker_->ended, 1);
}

TEST_F(AgentsTest, AnEndThatTakesTooLongIsNoSuccess) {
  broker_->setScript(untilKilled);
  broker_->endHangs = true;
  auto id = acquire();
  grpc::ClientContext context;
  auto stream = execUnderWay(context, id);
  ASSERT_TRUE(stream);
  std::thread client([&] { collect(context, *stream); });
  kill(agents_->pid(), SIGTERM);
  // The handler is there before the calls are ended.
  EXPECT_TRUE(eventually([&] { return broker_->ended == 1; }));
  kill(agents_->pid(), SIGALRM);  // as its own, 20 s later
  int status = agents_->stop();
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1) << status;
  client.join();
}

TEST_F(AgentsTest, HoldsNoPrivilege) {
  std::ifstream in("/proc/" + std::to_string(agents_->pid()) + "/status");
  int seen = 0;
  for (std::string key, value; in >> key;) {
    if (key == "CapEff:" || key == "CapPrm:" || key == "CapInh:" || key == "CapAmb:") {
      in >> value;
      EXPECT_EQ(value, "0000000000000000") << key;
      ++seen;
    } else if (key == "NoNewPrivs:") {
      in >> value;
      EXPECT_EQ(value, "1");
      ++seen;
    }
  }
  EXPECT_EQ(seen, 5);
}

TEST_F(AgentsTest, AtRestItUsesNoCpu) {
  acquire();
  auto ticks = [&] {
    std::ifstream in("/proc/" + std::to_string(agents_->pid()) + "/stat");
    std::string text((std::istreambuf_iterator<char>(in)), {});
    std::istringstream fields(text.substr(text.rfind(')') + 2));
    std::string skip;
    long user = 0, system = 0;
    for (int i = 0; i < 11; ++i) fields >> skip;
    fields >> user >> system;
    return user + system;
  };
  auto before = ticks();
  std::this_thread::sleep_for(2s);  // the length of the measurement
  EXPECT_LE(ticks() - before, 2);
}

}  // namespace
}  // namespace cordon::agents

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc != 2) {
    fprintf(stderr, "usage: %s PATH-OF-CORDON-AGENTS\n", argv[0]);
    return 2;
  }
  signal(SIGPIPE, SIG_IGN);
  cordon::agents::executable = std::filesystem::absolute(argv[1]);
  return RUN_ALL_TESTS();
}
