// Drives the real cordon-agents executable with real gRPC clients against a
// fake broker (fake_broker.h) with scripted guests. args: the executable.
#include <fcntl.h>
#include <grpcpp/create_channel_posix.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <kj/debug.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "frontend/agents/fake_broker.h"
#include "ipc/agent.grpc.pb.h"
#include "ipc/fdpass.h"

namespace cordon::agents {
namespace {

using namespace std::chrono_literals;
using std::chrono::steady_clock;

std::string executable;  // of cordon-agents; main() sets it

constexpr auto kPatience = 30s;

bool eventually(const std::function<bool()>& condition, std::chrono::seconds patience = kPatience) {
  auto deadline = steady_clock::now() + patience;
  while (!condition()) {
    if (steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(2ms);
  }
  return true;
}

sockaddr_un unixAddress(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  KJ_REQUIRE(path.size() < sizeof address.sun_path);
  memcpy(address.sun_path, path.data(), path.size());
  return address;
}

int bound(const std::string& path, int type) {
  int fd;
  KJ_SYSCALL(fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  auto address = unixAddress(path);
  KJ_SYSCALL(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), path);
  KJ_SYSCALL(chmod(path.c_str(), 0666));
  return fd;
}

int connected(const std::string& path) {
  int fd;
  KJ_SYSCALL(fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  auto address = unixAddress(path);
  KJ_SYSCALL(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), path);
  return fd;
}

// cordon-agents, started as `cordon up` starts it: socket activation, readiness.
class Agents {
 public:
  explicit Agents(const std::string& dir, const std::vector<std::string>& more = {})
      : socket_(dir + "/agents.sock"), notify_(dir + "/notify.sock") {
    int listener = bound(socket_, SOCK_STREAM);
    KJ_SYSCALL(listen(listener, 64));
    kj::AutoCloseFd notify(bound(notify_, SOCK_DGRAM));
    std::vector<std::string> args{executable, "--broker", dir + "/broker.sock"};
    args.insert(args.end(), more.begin(), more.end());
    std::vector<char*> argv;
    for (auto& arg : args) argv.push_back(arg.data());
    argv.push_back(nullptr);
    std::string notifyEnv = "NOTIFY_SOCKET=" + notify_, fds = "LISTEN_FDS=1",
                names = "LISTEN_FDNAMES=agents";
    char pidEnv[32] = "LISTEN_PID=";
    char* envp[] = {notifyEnv.data(), fds.data(), names.data(), pidEnv, nullptr};
    KJ_SYSCALL(pid_ = fork());
    if (pid_ == 0) {  // other threads may exist: only what is async-signal-safe
      char digits[16];
      int n = 0;
      for (pid_t p = getpid(); p > 0; p /= 10) digits[n++] = static_cast<char>('0' + p % 10);
      char* to = pidEnv + strlen(pidEnv);
      while (n > 0) *to++ = digits[--n];
      *to = 0;
      if (listener == 3) {
        fcntl(3, F_SETFD, 0);
      } else {
        dup2(listener, 3);
      }
      execve(executable.c_str(), argv.data(), envp);
      _exit(127);
    }
    close(listener);
    pollfd readable{notify, POLLIN, 0};
    char text[64] = {};
    if (poll(&readable, 1, 30000) == 1) (void)!read(notify, text, sizeof text - 1);
    EXPECT_EQ(std::string(text), "READY=1");
  }

  ~Agents() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }

  // SIGTERM; the wait status.
  int stop() {
    kill(pid_, SIGTERM);
    int status = -1;
    bool ended = eventually([&] { return waitpid(pid_, &status, WNOHANG) == pid_; });
    EXPECT_TRUE(ended) << "cordon-agents did not end";
    if (ended) pid_ = -1;
    return status;
  }

  uint64_t statusKb(const std::string& key) const {
    std::ifstream in("/proc/" + std::to_string(pid_) + "/status");
    for (std::string word; in >> word;) {
      uint64_t value;
      if (word == key && in >> value) return value;
    }
    return 0;
  }

  std::shared_ptr<grpc::Channel> channel() const {
    grpc::ChannelArguments args;
    args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection of its own
    args.SetMaxReceiveMessageSize(16 << 20);
    return grpc::CreateCustomChannel("unix:" + socket_, grpc::InsecureChannelCredentials(), args);
  }

  const std::string& socket() const { return socket_; }
  pid_t pid() const { return pid_; }

 private:
  std::string socket_, notify_;
  pid_t pid_ = -1;
};

std::string reason(const grpc::ClientContext& context) {
  auto& trailing = context.GetServerTrailingMetadata();
  auto found = trailing.find("cordon-reason");
  return found == trailing.end() ? "" : std::string(found->second.data(), found->second.size());
}

v1::ExecSpec command(std::vector<std::string> argv) {
  v1::ExecSpec exec;
  for (auto& arg : argv) exec.add_argv(arg);
  return exec;
}

struct Outcome {
  grpc::Status status;
  std::string reason;
  std::optional<v1::Started> started;
  std::optional<v1::Result> result;
  std::string out[2];
};

class AgentsTest : public testing::Test {
 protected:
  AgentsTest() {
    char name[] = "/tmp/cordon-agents-test-XXXXXX";
    KJ_REQUIRE(mkdtemp(name) != nullptr);
    dir_ = name;
    chmod(name, 0755);
    broker_.emplace(dir_ + "/broker.sock");
    agents_.emplace(dir_);
    stub_ = v1::Agents::NewStub(agents_->channel());
  }
  ~AgentsTest() override {
    stub_.reset();
    agents_.reset();
    broker_.reset();
    std::filesystem::remove_all(dir_);
  }

  // The same service with these flags.
  void restart(const std::vector<std::string>& flags) {
    stub_.reset();
    agents_.reset();
    for (const char* name : {"/agents.sock", "/notify.sock"}) unlink((dir_ + name).c_str());
    agents_.emplace(dir_, flags);
    stub_ = v1::Agents::NewStub(agents_->channel());
  }

  std::string acquire(const v1::SandboxSpec& spec = {}) {
    grpc::ClientContext context;
    v1::AcquireRequest request;
    *request.mutable_spec() = spec;
    v1::AcquireResponse response;
    auto status = stub_->Acquire(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.id();
  }

  using ClientStream = grpc::ClientReaderWriter<v1::ExecRequest, v1::ExecResponse>;

  static Outcome collect(grpc::ClientContext& context, ClientStream& stream) {
    Outcome outcome;
    v1::ExecResponse response;
    while (stream.Read(&response)) {
      if (response.has_started()) outcome.started = response.started();
      if (response.has_result()) outcome.result = response.result();
      if (response.has_output()) {
        auto& out = outcome.out[response.output().stream()];
        EXPECT_EQ(response.output().offset(), out.size());
        out += response.output().data();
      }
    }
    outcome.status = stream.Finish();
    outcome.reason = agents::reason(context);
    return outcome;
  }

  static v1::ExecRequest startRequest(const std::string& id, const v1::ExecSpec& exec) {
    v1::ExecRequest request;
    request.mutable_start()->set_id(id);
    *request.mutable_start()->mutable_exec() = exec;
    return request;
  }

  // A call that has had its first response. Null when it ended instead.
  std::unique_ptr<grpc::ClientReaderWriter<v1::ExecRequest, v1::ExecResponse>> execUnderWay(
      grpc::ClientContext& context, const std::string& id) {
    auto stream = stub_->Exec(&context);
    stream->Write(startRequest(id, command({"sleep"})));
    v1::ExecResponse response;
    return stream->Read(&response) ? std::move(stream) : nullptr;
  }

  Outcome exec(const std::string& id, const v1::ExecSpec& spec,
               const std::vector<v1::ExecRequest>& more = {}) {
    grpc::ClientContext context;
    auto stream = stub_->Exec(&context);
    stream->Write(startRequest(id, spec));
    for (auto& request : more) stream->Write(request);
    stream->WritesDone();
    return collect(context, *stream);
  }

  Outcome run(const v1::SandboxSpec& sandbox, const v1::ExecSpec& spec) {
    grpc::ClientContext context;
    auto stream = stub_->Run(&context);
    v1::ExecRequest request;
    *request.mutable_run()->mutable_sandbox() = sandbox;
    *request.mutable_run()->mutable_exec() = spec;
    stream->Write(request);
    stream->WritesDone();
    return collect(context, *stream);
  }

  std::string dir_;
  std::optional<FakeBroker> broker_;
  std::optional<Agents> agents_;
  std::unique_ptr<v1::Agents::Stub> stub_;
};

bool has(const std::vector<std::string>& list, const std::string& item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

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

// Runs until it is told to die, as an agent does.
void untilKilled(FakeGuest& guest) {
  if (!guest.greet()) return;
  guest.started();
  guest.output(0, "running\n");
  if (!guest.waitForKill()) return;
  guest.exited(true, SIGKILL,
               [](guest::Exited::Builder out) { out.setKilledBy(guest::KilledBy::HOST); });
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
    guest.waitForKill();
  });
  auto outcome = exec(acquire(), command({"prog"}));
  EXPECT_EQ(outcome.status.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_EQ(outcome.reason, "GUEST_PROTOCOL");
  EXPECT_EQ(broker_->killed, 1);
  EXPECT_EQ(broker_->streamsLost, 0);
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

TEST_F(AgentsTest, BadRequestsGetAReasonAndReachNobody) {
  auto id = acquire();
  auto acquired = broker_->acquired.load();
  struct Case {
    const char* reason;
    std::function<void(v1::ExecSpec&)> change;
  };
  const Case cases[] = {
      {"ARGV_EMPTY", [](auto& spec) { spec.clear_argv(); }},
      {"ARGV_EMPTY", [](auto& spec) { spec.set_argv(0, ""); }},
      {"ARGV_NUL", [](auto& spec) { spec.set_argv(0, std::string("a\0b", 3)); }},
      {"ARGV_TOO_LONG", [](auto& spec) { spec.add_argv(std::string(2 << 20, 'a')); }},
      {"ARGV_TOO_LONG", [](auto& spec) { spec.add_argv(std::string(131072, 'a')); }},
      {"ARGV_TOO_MANY",
       [](auto& spec) {
         for (int i = 0; i < 10000; ++i) spec.add_argv("a");
       }},
      {"ARGS_TOO_LARGE",
       [](auto& spec) {
         for (int i = 0; i < 9; ++i) spec.add_argv(std::string(130000, 'a'));
       }},
      {"ENV_MALFORMED", [](auto& spec) { spec.add_env("NOEQUALS"); }},
      {"ENV_MALFORMED", [](auto& spec) { spec.add_env("=value"); }},
      {"ENV_NUL", [](auto& spec) { spec.add_env(std::string("A=\0", 3)); }},
      {"CWD_NUL", [](auto& spec) { spec.set_cwd(std::string("/\0", 2)); }},
      {"CWD_TOO_LONG", [](auto& spec) { spec.set_cwd(std::string(5000, '/')); }},
      {"BAD_USER", [](auto& spec) { spec.set_user("a:b"); }},
      {"BAD_USER", [](auto& spec) { spec.set_user("../root"); }},
      {"BAD_USER", [](auto& spec) { spec.set_user("4294967295"); }},
      {"LIMIT_ZERO", [](auto& spec) { spec.mutable_limits()->set_wall_ms(0); }},
      {"LIMIT_NEGATIVE", [](auto& spec) { spec.mutable_limits()->set_cpu_time_ms(-1); }},
      {"LIMIT_TOO_HIGH", [](auto& spec) { spec.mutable_limits()->set_files(int64_t{1} << 33); }},
      {"LIMIT_NOT_PER_EXEC", [](auto& spec) { spec.mutable_limits()->set_memory_bytes(1 << 20); }},
      {"EXEC_LIMIT_TOO_WIDE", [](auto& spec) { spec.mutable_limits()->set_wall_ms(60'001); }},
      {"EXEC_LIMIT_TOO_WIDE", [](auto& spec) { spec.mutable_limits()->set_files(1000); }},
  };
  for (auto& item : cases) {
    auto spec = command({"prog"});
    item.change(spec);
    auto outcome = exec(id, spec);
    EXPECT_EQ(outcome.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << item.reason;
    EXPECT_EQ(outcome.reason, item.reason) << outcome.status.error_message();
    v1::ErrorDetail detail;
    EXPECT_TRUE(detail.ParseFromString(outcome.status.error_details()));
    EXPECT_EQ(detail.reason(), item.reason);
    EXPECT_FALSE(detail.subject().empty()) << item.reason;
    auto asRun = run({}, spec);
    EXPECT_EQ(asRun.reason, item.reason);
  }
  // Only a limit that must be compared with a sandbox's gets as far as one.
  EXPECT_EQ(broker_->acquired - acquired, 2);
  EXPECT_EQ(broker_->destroyed, 2);
  EXPECT_EQ(broker_->begun, broker_->ended);

  for (auto bad :
       {"", "sb-x", "sb-aaaaaaaaab.zz", "sb-AAAAAAAAAA.00000000000000000000000000000001"}) {
    EXPECT_EQ(exec(bad, command({"prog"})).reason, "BAD_ID") << bad;
  }
  auto other = id;
  other.back() = other.back() == '0' ? '1' : '0';
  EXPECT_EQ(exec(other, command({"prog"})).status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(exec(other, command({"prog"})).reason, "NO_SUCH_SANDBOX");

  for (auto zero : {int64_t{0}, int64_t{-5}}) {
    v1::SandboxSpec spec;
    spec.mutable_limits()->set_memory_bytes(zero);
    EXPECT_EQ(run(spec, command({"prog"})).reason, zero == 0 ? "LIMIT_ZERO" : "LIMIT_NEGATIVE");
  }
  broker_->refuseAcquire(rpc::Code::INVALID_ARGUMENT, rpc::Reason::SCRATCH_EXCEEDS_MEMORY, "no");
  EXPECT_EQ(run({}, command({"prog"})).reason, "SCRATCH_EXCEEDS_MEMORY");
  broker_->refuseAcquire(rpc::Code::RESOURCE_EXHAUSTED, rpc::Reason::TOO_MANY_SANDBOXES, "no");
  auto full = run({}, command({"prog"}));
  EXPECT_EQ(full.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(full.reason, "TOO_MANY_SANDBOXES");
}

TEST_F(AgentsTest, CompressedRequestsAreRefused) {
  auto id = acquire();
  auto before = agents_->statusKb("VmHWM:");
  grpc::ClientContext context;
  context.set_compression_algorithm(GRPC_COMPRESS_GZIP);
  auto stream = stub_->Exec(&context);
  // About 300 KiB on the wire.
  stream->Write(startRequest(id, command({std::string(300 << 20, 'a')})));
  EXPECT_EQ(collect(context, *stream).status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_LT(agents_->statusKb("VmHWM:"), before + 32 * 1024) << "KiB, from " << before;
  EXPECT_EQ(broker_->begun, 0);
}

TEST_F(AgentsTest, RequestsOutOfSequence) {
  broker_->setScript(untilKilled);
  auto id = acquire();
  v1::ExecRequest request;
  request.set_stdin("x");
  EXPECT_EQ(exec(id, command({"prog"}), {request}).reason, "STDIN_NOT_OPEN");
  request.set_signal(65);
  EXPECT_EQ(exec(id, command({"prog"}), {request}).reason, "BAD_SIGNAL");
  EXPECT_EQ(exec(id, command({"prog"}), {startRequest(id, command({"prog"}))}).reason,
            "BAD_SEQUENCE");
  EXPECT_EQ(exec(id, command({"prog"}), {v1::ExecRequest()}).reason, "BAD_SEQUENCE");
  auto withStdin = command({"prog"});
  withStdin.set_stdin(true);
  request.set_stdin(std::string((1 << 20) + 1, 'x'));
  EXPECT_EQ(exec(id, withStdin, {request}).reason, "STDIN_TOO_LARGE");
  {
    grpc::ClientContext context;
    auto stream = stub_->Exec(&context);
    stream->WritesDone();
    EXPECT_EQ(collect(context, *stream).reason, "BAD_SEQUENCE");
  }
  {
    grpc::ClientContext context;
    auto stream = stub_->Run(&context);
    stream->Write(startRequest(id, command({"prog"})));
    EXPECT_EQ(collect(context, *stream).reason, "BAD_SEQUENCE");
  }
  EXPECT_TRUE(eventually([&] { return broker_->begun == broker_->ended; }));
}

TEST_F(AgentsTest, ListsPageByPage) {
  std::set<std::string> all, seen;
  for (int i = 0; i < 5; ++i) all.insert(acquire().substr(0, 13));
  v1::ListRequest request;
  request.set_page_size(2);
  size_t pages = 0;
  do {
    grpc::ClientContext context;
    v1::ListResponse page;
    ASSERT_TRUE(stub_->List(&context, request, &page).ok());
    ASSERT_LE(page.sandboxes_size(), 2);
    for (const auto& info : page.sandboxes()) {
      EXPECT_TRUE(seen.insert(info.name()).second) << "twice: " << info.name();
    }
    request.set_page_token(page.next_page_token());
    ASSERT_LE(++pages, 3u);
  } while (!request.page_token().empty());
  EXPECT_EQ(pages, 3u);
  EXPECT_EQ(seen, all);

  auto reasonOf = [&](int32_t size, const std::string& token) {
    grpc::ClientContext context;
    v1::ListResponse none;
    request.set_page_size(size);
    request.set_page_token(token);
    EXPECT_EQ(stub_->List(&context, request, &none).error_code(),
              grpc::StatusCode::INVALID_ARGUMENT);
    return agents::reason(context);
  };
  EXPECT_EQ(reasonOf(-1, ""), "BAD_PAGE_SIZE");
  EXPECT_EQ(reasonOf(501, ""), "BAD_PAGE_SIZE");
  EXPECT_EQ(reasonOf(2, "sb-aaaaaaaaaa.0"), "BAD_PAGE_TOKEN");
  EXPECT_EQ(reasonOf(2, "../aaaaaaaaaa"), "BAD_PAGE_TOKEN");
}

TEST_F(AgentsTest, ReleaseInspectListRuntimes) {
  auto id = acquire();
  {
    grpc::ClientContext context;
    v1::InspectRequest request;
    request.set_id(id);
    v1::InspectResponse response;
    auto status = stub_->Inspect(&context, request, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.sandbox().name(), id.substr(0, 13));
    EXPECT_EQ(response.sandbox().state(), "ready");
    EXPECT_EQ(response.sandbox().limits().wall_ms(), 60'000);
  }
  {
    grpc::ClientContext context;
    v1::ListResponse response;
    ASSERT_TRUE(stub_->List(&context, {}, &response).ok());
    ASSERT_EQ(response.sandboxes_size(), 1);
    EXPECT_EQ(response.SerializeAsString().find(id.substr(14)), std::string::npos) << "a token";
  }
  {
    grpc::ClientContext context;
    v1::RuntimesResponse response;
    ASSERT_TRUE(stub_->Runtimes(&context, {}, &response).ok());
    ASSERT_EQ(response.runtimes_size(), 1);
    EXPECT_FALSE(response.one_trust_zone());
  }
  v1::ReleaseRequest request;
  request.set_id(id);
  {
    grpc::ClientContext context;
    v1::ReleaseResponse response;
    ASSERT_TRUE(stub_->Release(&context, request, &response).ok());
    EXPECT_TRUE(response.receipt().complete());
  }
  {
    grpc::ClientContext context;
    v1::ReleaseResponse response;
    EXPECT_EQ(stub_->Release(&context, request, &response).error_code(),
              grpc::StatusCode::NOT_FOUND);
  }
  EXPECT_EQ(broker_->destroyed, 1);
}

// A connection that was made under another uid: SO_PEERCRED tells the uid at
// connect(), so a child makes it and hands it over.
kj::AutoCloseFd connectedAs(uid_t uid, const std::string& path) {
  auto pair = ipc::socketPair(SOCK_SEQPACKET);
  pid_t child;
  KJ_SYSCALL(child = fork());
  if (child == 0) {
    if (setresgid(uid, uid, uid) != 0 || setresuid(uid, uid, uid) != 0) _exit(1);
    int fd = connected(path);
    ipc::sendWithFds(pair.b, kj::StringPtr("x").asBytes(), kj::arrayPtr(&fd, 1));
    _exit(0);
  }
  int status = 0;
  KJ_SYSCALL(waitpid(child, &status, 0));
  KJ_REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child could not connect");
  kj::byte byte[8];
  auto received = ipc::receiveWithFds(pair.a, byte, 1);
  return kj::mv(KJ_REQUIRE_NONNULL(received).fds.at(0));
}

TEST_F(AgentsTest, TwoUidsSeeOnlyTheirOwn) {
  if (getuid() != 0) GTEST_SKIP() << "takes root: connects under two other uids";
  broker_->setScript(untilKilled);
  auto mine = acquire();
  EXPECT_EQ(broker_->lastAcquireUid, 0u);
  std::vector<std::string> ids;
  std::vector<std::unique_ptr<v1::Agents::Stub>> stubs;
  for (uid_t uid : {54321u, 54322u}) {
    auto fd = connectedAs(uid, agents_->socket());
    stubs.push_back(v1::Agents::NewStub(grpc::CreateInsecureChannelFromFd("cordon", fd.release())));
    grpc::ClientContext context;
    v1::AcquireResponse response;
    ASSERT_TRUE(stubs.back()->Acquire(&context, {}, &response).ok());
    EXPECT_EQ(broker_->lastAcquireUid, uid);
    EXPECT_EQ(response.sandbox().owner_uid(), uid);
    ids.push_back(response.id());
  }
  for (size_t i = 0; i < 2; ++i) {
    grpc::ClientContext listing;
    v1::ListResponse list;
    ASSERT_TRUE(stubs[i]->List(&listing, {}, &list).ok());
    ASSERT_EQ(list.sandboxes_size(), 1);
    EXPECT_EQ(list.sandboxes(0).name(), ids[i].substr(0, 13));
    grpc::ClientContext context;
    v1::ReleaseRequest request;
    request.set_id(ids[1 - i]);
    v1::ReleaseResponse response;
    EXPECT_EQ(stubs[i]->Release(&context, request, &response).error_code(),
              grpc::StatusCode::NOT_FOUND);
  }
  EXPECT_EQ(exec(ids[0], command({"prog"})).reason, "NO_SUCH_SANDBOX");
}

TEST_F(AgentsTest, GarbageOnTheSocketHurtsNobodyElse) {
  for (int i = 0; i < 20; ++i) {
    kj::AutoCloseFd fd(connected(agents_->socket()));
    std::string garbage(10'000, static_cast<char>(i * 13 + 1));
    (void)!send(fd, garbage.data(), garbage.size(), MSG_NOSIGNAL);
    if (i % 2 == 0) continue;
    // The server ends it: it is no HTTP/2.
    pollfd readable{fd, POLLIN, 0};
    char byte[4096];
    ssize_t n = 1;
    while (n > 0 && poll(&readable, 1, 30000) == 1) n = read(fd, byte, sizeof byte);
    EXPECT_LE(n, 0);
  }
  acquire();
}

TEST_F(AgentsTest, ConnectionsArePerUserLimitedAndComeBack) {
  // 64 a user; the stub has one of them. The rest is closed at once.
  std::vector<kj::AutoCloseFd> open;
  auto closedAtOnce = [&](int fd) {
    char byte[4096];
    // An admitted connection gets the server's SETTINGS frame, another one EOF.
    return recv(fd, byte, sizeof byte, 0) <= 0;
  };
  acquire();
  int refused = 0;
  for (int i = 0; i < 80; ++i) {
    open.emplace_back(connected(agents_->socket()));
    refused += closedAtOnce(open.back());
  }
  EXPECT_EQ(refused, 80 - 63);
  open.clear();
  EXPECT_TRUE(eventually([&] {
    kj::AutoCloseFd again(connected(agents_->socket()));
    return !closedAtOnce(again);
  }));
}

TEST_F(AgentsTest, CallsAreLimitedPerUser) {
  restart({"--max-calls-per-user", "2"});
  broker_->setScript(untilKilled);
  auto id = acquire();
  struct Open {
    grpc::ClientContext context;
    std::unique_ptr<ClientStream> stream;
  };
  std::vector<std::unique_ptr<Open>> open;
  for (int i = 0; i < 2; ++i) {
    auto& call = *open.emplace_back(std::make_unique<Open>());
    call.stream = stub_->Exec(&call.context);
    call.stream->Write(startRequest(id, command({"sleep"})));
    v1::ExecResponse response;
    ASSERT_TRUE(call.stream->Read(&response));
  }
  auto refused = exec(id, command({"prog"}));
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(refused.reason, "TOO_MANY_CALLS");
  v1::ErrorDetail detail;
  ASSERT_TRUE(detail.ParseFromString(refused.status.error_details()));
  EXPECT_EQ(detail.limit(), 2u);

  if (getuid() == 0) {  // another uid is none the worse for it
    auto fd = connectedAs(54321, agents_->socket());
    auto other = v1::Agents::NewStub(grpc::CreateInsecureChannelFromFd("cordon", fd.release()));
    grpc::ClientContext acquiring, executing;
    v1::AcquireResponse acquired;
    ASSERT_TRUE(other->Acquire(&acquiring, {}, &acquired).ok());
    auto stream = other->Exec(&executing);
    stream->Write(startRequest(acquired.id(), command({"sleep"})));
    v1::ExecResponse response;
    EXPECT_TRUE(stream->Read(&response));
    executing.TryCancel();
    collect(executing, *stream);
  }

  open[0]->context.TryCancel();
  collect(open[0]->context, *open[0]->stream);
  broker_->setScript([](FakeGuest& guest) {
    guest.greet();
    guest.exited(false, 0);
  });
  EXPECT_TRUE(eventually([&] { return exec(id, command({"prog"})).result.has_value(); }));
  open[1]->context.TryCancel();
  collect(open[1]->context, *open[1]->stream);
}

TEST_F(AgentsTest, AnIdleUserMakesRoomHoweverBusyTheSocketIs) {
  if (getuid() != 0) GTEST_SKIP() << "takes root: connects under another uid";
  restart({"--max-users", "1", "--user-idle-seconds", "1"});
  acquire();
  stub_.reset();
  // The one that waits is what keeps the service from ever being idle.
  auto admitted = [&] {
    auto fd = connectedAs(54321, agents_->socket());
    char byte[64];
    return recv(fd, byte, sizeof byte, 0) > 0;
  };
  EXPECT_FALSE(admitted());
  EXPECT_TRUE(eventually(admitted, 10s));
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
