// `explain`, with guests that hand over a listener, none, or whatever they like.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/mman.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "frontend/agents/agents_fixture.h"
#include "frontend/agents/explained_child.h"

namespace cordon::agents {
namespace {

v1::ExecSpec explained() {
  auto spec = command({"prog"});
  spec.set_explain(true);
  return spec;
}

class ExplainTest : public AgentsTest {
 protected:
  static constexpr int kLingerSeconds = 120;

  // A TCP socket that whoever closes it last waits for: bytes are under way to a
  // peer that reads none until this test is over.
  kj::AutoCloseFd lingeringSocket() {
    kj::AutoCloseFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    KJ_SYSCALL(bind(listener, generic, size));
    KJ_SYSCALL(listen(listener, 1));
    KJ_SYSCALL(getsockname(listener, generic, &size));
    kj::AutoCloseFd slow(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    KJ_SYSCALL(connect(slow, generic, size));
    int peer;
    KJ_SYSCALL(peer = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    peers_.emplace_back(peer);
    const std::vector<char> bytes(64 * 1024);
    while (send(slow, bytes.data(), bytes.size(), MSG_DONTWAIT) > 0) {
    }
    const linger waits = {1, kLingerSeconds};
    KJ_SYSCALL(setsockopt(slow, SOL_SOCKET, SO_LINGER, &waits, sizeof(waits)));
    return slow;
  }

  // No thread and no listener of an exec is left at the frontend.
  void expectNothingHeld() {
    EXPECT_TRUE(eventually([this] { return !holds("fd", "seccomp notify") && !threads(); }));
  }
  // Another call is served, and soon.
  void expectServed(const std::string& id) {
    auto began = steady_clock::now();
    broker_->setScript([](FakeGuest& guest) {
      guest.greet();
      guest.started();
      guest.exited(false, 0);
    });
    auto outcome = exec(id, command({"prog"}));
    EXPECT_TRUE(outcome.result && outcome.result->exit_code() == 0) << outcome.reason;
    EXPECT_LT(steady_clock::now() - began, std::chrono::seconds(kLingerSeconds / 2));
  }

 private:
  std::vector<kj::AutoCloseFd> peers_;

  std::filesystem::path proc() const { return "/proc/" + std::to_string(agents_->pid()); }
  bool holds(const char* where, const char* what) const {
    for (auto& entry : std::filesystem::directory_iterator(proc() / where)) {
      std::error_code gone;
      auto target = std::filesystem::read_symlink(entry.path(), gone).string();
      if (target.find(what) != std::string::npos) return true;
    }
    return false;
  }
  bool threads() const {
    for (auto& entry : std::filesystem::directory_iterator(proc() / "task")) {
      std::ifstream in(entry.path() / "comm");
      std::string name;
      if (in >> name && name == "explain") return true;
    }
    return false;
  }
};

TEST_F(ExplainTest, ListsWhatTheListenerWasAskedAbout) {
  std::optional<FakeGuest::Start> start;
  int error = 0;
  broker_->setScript([&](FakeGuest& guest) {
    start = guest.greet();
    ExplainedChild child(askingAbout(SYS_unshare), [] {
      for (int i = 0; i < 2; ++i) syscall(SYS_unshare, CLONE_NEWUSER);
      return syscall(SYS_unshare, CLONE_NEWUSER) < 0 ? errno : 0;
    });
    {
      auto listener = child.takeListener();
      guest.startedWith({listener});
    }
    child.go();
    error = child.wait();
    guest.exited(false, 3);
  });
  auto outcome = exec(acquire(), explained());
  ASSERT_TRUE(outcome.result) << outcome.reason;
  EXPECT_TRUE(start && start->explain);
  EXPECT_EQ(error, EPERM);
  EXPECT_EQ(outcome.result->exit_code(), 3);
  auto& explanation = outcome.result->explanation();
  ASSERT_EQ(explanation.refused_calls_size(), 1) << explanation.ShortDebugString();
  EXPECT_EQ(explanation.refused_calls(0).name(), "unshare");
  EXPECT_EQ(explanation.refused_calls(0).count(), 3u);
  EXPECT_EQ(explanation.incomplete(), "");
  expectNothingHeld();
}

TEST_F(ExplainTest, IsNotThereUnasked) {
  broker_->setScript([](FakeGuest& guest) {
    auto start = guest.greet();
    guest.started();
    guest.exited(false, start && start->explain ? 1 : 0);
  });
  auto outcome = exec(acquire(), command({"prog"}));
  ASSERT_TRUE(outcome.result) << outcome.reason;
  EXPECT_EQ(outcome.result->exit_code(), 0);
  EXPECT_FALSE(outcome.result->has_explanation());
}

TEST_F(ExplainTest, SaysThatNoListenerCame) {
  broker_->setScript([](FakeGuest& guest) {
    guest.greet();
    guest.started();
    guest.exited(false, 0, [](guest::Exited::Builder out) { out.setLeftRunning(2); });
  });
  auto outcome = exec(acquire(), explained());
  ASSERT_TRUE(outcome.result) << outcome.reason;
  auto& lacks = outcome.result->explanation().incomplete();
  EXPECT_NE(lacks.find("no listener"), std::string::npos) << lacks;
  EXPECT_NE(lacks.find("left running"), std::string::npos) << lacks;
}

TEST_F(ExplainTest, SaysThatTheFilterIsAnother) {
  broker_->setScript([](FakeGuest& guest) {
    guest.greet();
    ExplainedChild child(askingAbout(SYS_getppid),
                         [] { return syscall(SYS_getppid) < 0 ? errno : 0; });
    guest.startedWith({child.listener()});
    child.go();
    guest.exited(false, static_cast<uint32_t>(child.wait()));
  });
  auto outcome = exec(acquire(), explained());
  ASSERT_TRUE(outcome.result) << outcome.reason;
  EXPECT_EQ(outcome.result->exit_code(), EPERM);  // never let through
  auto& lacks = outcome.result->explanation().incomplete();
  EXPECT_NE(lacks.find("is another"), std::string::npos) << lacks;
  expectNothingHeld();
}

// The guest goes on asking while the call is ended.
TEST_F(ExplainTest, EndsWithTheCall) {
  broker_->setScript([](FakeGuest& guest) {
    guest.greet();
    ExplainedChild child(askingAbout(SYS_unshare), [] {
      while (syscall(SYS_unshare) < 0 && errno == EPERM) {
      }
      return errno;
    });
    {
      auto listener = child.takeListener();
      guest.startedWith({listener});
    }
    child.go();
    guest.exited(false, 0);
    EXPECT_EQ(child.wait(), ENOSYS);
  });
  auto id = acquire();
  auto outcome = exec(id, explained());
  ASSERT_TRUE(outcome.result) << outcome.reason;
  expectNothingHeld();
  expectServed(id);
}

TEST_F(ExplainTest, TakesNoOtherDescriptor) {
  struct Hands {
    kj::AutoCloseFd listener, pipe, memory;
  };
  using Send = std::function<void(FakeGuest&, const Hands&)>;
  const struct {
    const char* what;
    bool explain;
    Send send;
  } kCases[] = {
      {"a pipe", true,
       [](FakeGuest& guest, const Hands& hands) { guest.startedWith({hands.pipe}); }},
      {"a memfd of its name", true,
       [](FakeGuest& guest, const Hands& hands) { guest.startedWith({hands.memory}); }},
      {"two at once", true,
       [](FakeGuest& guest, const Hands& hands) {
         guest.startedWith({hands.listener, hands.listener});
       }},
      {"one, and another", true,
       [](FakeGuest& guest, const Hands& hands) {
         guest.startedWith({hands.listener});
         guest.startedWith({hands.listener});
       }},
      {"as many as there can be", true,
       [](FakeGuest& guest, const Hands& hands) {
         guest.startedWith(std::vector<int>(ipc::kMostFdsAtOnce, hands.listener));
       }},
      {"one that nobody asked for", false,
       [](FakeGuest& guest, const Hands& hands) { guest.startedWith({hands.listener}); }},
      {"one that closes slowly", true,
       [this](FakeGuest& guest, const Hands&) {
         auto slow = lingeringSocket();
         guest.startedWith({slow});
       }},
      {"one that closes slowly, unasked", false,
       [this](FakeGuest& guest, const Hands&) {
         auto slow = lingeringSocket();
         guest.startedWith({slow});
       }},
  };
  auto id = acquire();
  for (const auto& each : kCases) {
    broker_->setScript([&](FakeGuest& guest) {
      guest.greet();
      ExplainedChild child(askingAbout(SYS_unshare), [] { return 0; });
      int ends[2];
      KJ_SYSCALL(pipe2(ends, O_CLOEXEC));
      kj::AutoCloseFd other(ends[1]);
      Hands hands{child.takeListener(), kj::AutoCloseFd(ends[0]),
                  kj::AutoCloseFd(memfd_create("anon_inode:seccomp notify", MFD_CLOEXEC))};
      each.send(guest, hands);
      guest.waitForKill();
    });
    auto outcome = exec(id, each.explain ? explained() : command({"prog"}));
    EXPECT_EQ(outcome.reason, "GUEST_PROTOCOL") << each.what;
    expectServed(id);
  }
  expectNothingHeld();
}

// It runs on for a moment after the signal was sent.
bool isStopped(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  auto name = text.rfind(") ");
  return name != std::string::npos && text[name + 2] == 'T';
}

// What is never read would be closed with the stream.
TEST_F(ExplainTest, WaitsForNoDescriptorThatIsNotRead) {
  bool sent = false;
  broker_->setScript([&](FakeGuest& guest) {
    guest.greet();
    // So that all of it is there when the first part is found to be garbage.
    kill(agents_->pid(), SIGSTOP);
    EXPECT_TRUE(eventually([&] { return isStopped(agents_->pid()); }));
    const std::string garbage(64 * 1024, '\xa5');
    guest.raw(garbage.data(), garbage.size());
    {
      auto slow = lingeringSocket();
      sent = guest.startedWith({slow});
    }
    kill(agents_->pid(), SIGCONT);
    guest.waitForKill();
  });
  auto id = acquire();
  EXPECT_EQ(exec(id, command({"prog"})).reason, "GUEST_PROTOCOL");
  EXPECT_TRUE(sent);
  expectServed(id);
}

TEST_F(ExplainTest, IsLimitedPerUser) {
  constexpr size_t kMost = 8;
  broker_->setScript(untilKilled);
  auto id = acquire();
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<ClientStream>> streams;
  for (size_t i = 0; i < kMost; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    streams.push_back(stub_->Exec(contexts.back().get()));
    streams.back()->Write(startRequest(id, explained()));
    v1::ExecResponse response;
    ASSERT_TRUE(streams.back()->Read(&response));
  }
  auto outcome = exec(id, explained());
  EXPECT_EQ(outcome.reason, "TOO_MANY_EXPLAINED");
  EXPECT_EQ(outcome.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  for (size_t i = 0; i < kMost; ++i) {
    contexts[i]->TryCancel();
    collect(*contexts[i], *streams[i]);
  }
  broker_->setScript([](FakeGuest& guest) {
    guest.greet();
    guest.started();
    guest.exited(false, 0);
  });
  EXPECT_TRUE(eventually([&] { return exec(id, explained()).result.has_value(); }));
}

TEST_F(ExplainTest, IsRefusedOnHost) {
  v1::SandboxSpec host;
  host.set_runtime("host");
  auto outcome = run(host, explained());
  EXPECT_EQ(outcome.reason, "UNSUPPORTED");
  EXPECT_EQ(broker_->acquired, 0);
  auto id = acquire(host);
  broker_->setScript(untilKilled);
  outcome = exec(id, explained());
  EXPECT_EQ(outcome.reason, "UNSUPPORTED");
  EXPECT_EQ(broker_->begun, broker_->ended);
}

}  // namespace
}  // namespace cordon::agents
