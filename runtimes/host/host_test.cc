// The real vm-agent as the host runtime starts it; as any user.
#include "runtimes/host/host.h"

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <gtest/gtest.h>
#include <kj/async-unix.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "ipc/control.h"
#include "ipc/fdpass.h"
#include "vm_agent/test_agent.h"

namespace cordon::runtimes {
namespace {

namespace fs = std::filesystem;
using agent::testing::Outcome;
using agent::testing::TestStream;

class Host : public ::testing::Test {
 protected:
  Host() {
    char path[] = "/tmp/cordon-host-XXXXXX";
    directory_ = mkdtemp(path);
  }
  ~Host() noexcept override { fs::remove_all(directory_); }

  kj::Own<Runtime> make(bool allowed, const std::string& agent = CORDON_TEST_VM_AGENT) {
    return makeHostRuntime(children_, {allowed, agent});
  }

  using Result = kj::OneOf<Started, CreateFailure>;
  Result create(Runtime& runtime) {
    auto sockets = ipc::socketPair(SOCK_SEQPACKET);
    control_ = kj::mv(sockets.a);
    CreateRequest request;
    request.name = "sb-host";
    request.directory = directory_;
    request.control = kj::mv(sockets.b);
    return runtime.create(kj::mv(request)).wait(wait_);
  }

  void send(ipc::ControlKind kind, uint32_t exec, const std::vector<int>& fds,
            const std::string& payload = "") {
    ipc::ControlHeader header = {kind, exec};
    std::string datagram(reinterpret_cast<const char*>(&header), sizeof header);
    datagram += payload;
    EXPECT_EQ(ipc::sendWithFds(
                  control_,
                  kj::arrayPtr(reinterpret_cast<const kj::byte*>(datagram.data()), datagram.size()),
                  kj::arrayPtr(fds.data(), fds.size())),
              ipc::SendResult::kSent);
  }

  void sendConfig() {
    capnp::MallocMessageBuilder message;
    auto config = message.initRoot<guest::AgentConfig>();
    config.setJoin(guest::JoinMode::SUBREAPER);
    config.setSwitchUser(false);
    config.setWorkDir(directory_ + "/work");
    config.setMaxExecs(2);
    config.setOutputBytes(1 << 20);
    auto words = capnp::messageToFlatArray(message);
    auto bytes = words.asBytes();
    send(ipc::ControlKind::kConfig, 0, {},
         std::string(reinterpret_cast<const char*>(bytes.begin()), bytes.size()));
  }

  kj::UnixEventPort port_;
  kj::EventLoop loop_{port_};
  kj::WaitScope wait_{loop_};
  broker::Children children_{port_};
  std::string directory_;
  kj::AutoCloseFd control_;
};

TEST_F(Host, IsNoSandboxAndSaysSo) {
  auto runtime = make(true);
  EXPECT_STREQ(runtime->name(), "host");
  EXPECT_FALSE(runtime->isSandbox());
  EXPECT_FALSE(runtime->needsCgroups());
  EXPECT_FALSE(runtime->needsImage());
  Probe probe = runtime->probe().wait(wait_);
  EXPECT_TRUE(probe.available) << probe.reason;
  ASSERT_EQ(probe.notes.size(), 2u);
  EXPECT_NE(probe.notes[0].find("not a sandbox"), std::string::npos);
  EXPECT_NE(probe.notes[1].find("one trust zone"), std::string::npos);
}

TEST_F(Host, IsRefusedUnlessAllowed) {
  auto runtime = make(false);
  Probe probe = runtime->probe().wait(wait_);
  EXPECT_FALSE(probe.available);
  EXPECT_NE(probe.fix.find("--allow-host-runtime"), std::string::npos);
  Result result = create(*runtime);
  ASSERT_TRUE(result.is<CreateFailure>());
  EXPECT_EQ(result.get<CreateFailure>().reason, rpc::Reason::RUNTIME_NOT_ALLOWED);
  EXPECT_TRUE(fs::is_empty(directory_));
}

TEST_F(Host, NeedsAnAgent) {
  auto runtime = make(true, directory_ + "/none");
  Probe probe = runtime->probe().wait(wait_);
  EXPECT_FALSE(probe.available);
  EXPECT_NE(probe.fix, "");
  Result result = create(*runtime);
  ASSERT_TRUE(result.is<CreateFailure>());
  EXPECT_EQ(result.get<CreateFailure>().reason, rpc::Reason::RUNTIME_FAILED);
  EXPECT_TRUE(fs::is_empty(directory_)) << "files are left";
}

TEST_F(Host, RunsProgramsAndCleansUp) {
  auto runtime = make(true);
  Result result = create(*runtime);
  ASSERT_TRUE(result.is<Started>());
  kj::Own<broker::Child> init = kj::mv(result.get<Started>().init);
  sendConfig();
  auto ends = ipc::socketPair(SOCK_STREAM);
  send(ipc::ControlKind::kStream, 0, {ends.b.get()});
  TestStream stream(kj::mv(ends.a));
  ASSERT_TRUE(stream.waitHello());
  send(ipc::ControlKind::kExec, 1, {});
  stream.start(1, agent::testing::shell("mkdir -p a/b && echo x >a/b/file && pwd && id -u"));
  ASSERT_TRUE(stream.waitOver(1));
  EXPECT_EQ(stream[1].text(), directory_ + "/work\n" + std::to_string(geteuid()) + "\n")
      << stream[1].text(1);
  EXPECT_TRUE(fs::exists(directory_ + "/work/a/b/file"));

  control_ = nullptr;  // the supervisor is gone
  broker::ExitStatus status = init->onExit().wait(wait_);
  EXPECT_FALSE(status.signaled);
  EXPECT_TRUE(runtime->cleanup("sb-host", directory_).empty());
  EXPECT_TRUE(fs::is_empty(directory_)) << "files are left";
  EXPECT_TRUE(runtime->cleanup("sb-host", directory_).empty());
  EXPECT_TRUE(runtime->cleanup("sb-host", directory_ + "/none").empty());
}

}  // namespace
}  // namespace cordon::runtimes
