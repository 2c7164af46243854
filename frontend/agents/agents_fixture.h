// Drives the real cordon-agents executable with real gRPC clients against a
// fake broker (fake_broker.h) with scripted guests: what its tests share.
#pragma once
#include <fcntl.h>
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

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "frontend/agents/fake_broker.h"
#include "ipc/agent.grpc.pb.h"

namespace cordon::agents {

using namespace std::chrono_literals;
using std::chrono::steady_clock;

inline std::string executable;  // of cordon-agents; main() sets it

constexpr auto kPatience = 30s;

inline bool eventually(const std::function<bool()>& condition,
                       std::chrono::seconds patience = kPatience) {
  auto deadline = steady_clock::now() + patience;
  while (!condition()) {
    if (steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(2ms);
  }
  return true;
}

inline sockaddr_un unixAddress(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  KJ_REQUIRE(path.size() < sizeof address.sun_path);
  memcpy(address.sun_path, path.data(), path.size());
  return address;
}

inline int bound(const std::string& path, int type) {
  int fd;
  KJ_SYSCALL(fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  auto address = unixAddress(path);
  KJ_SYSCALL(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), path);
  KJ_SYSCALL(chmod(path.c_str(), 0666));
  return fd;
}

inline int connected(const std::string& path) {
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

inline std::string reason(const grpc::ClientContext& context) {
  auto& trailing = context.GetServerTrailingMetadata();
  auto found = trailing.find("cordon-reason");
  return found == trailing.end() ? "" : std::string(found->second.data(), found->second.size());
}

inline v1::ExecSpec command(std::vector<std::string> argv) {
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

inline bool has(const std::vector<std::string>& list, const std::string& item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

// Runs until it is told to die, as an agent does.
inline void untilKilled(FakeGuest& guest) {
  if (!guest.greet()) return;
  guest.started();
  guest.output(0, "running\n");
  if (!guest.waitForKill()) return;
  guest.exited(true, SIGKILL,
               [](guest::Exited::Builder out) { out.setKilledBy(guest::KilledBy::HOST); });
}

}  // namespace cordon::agents
