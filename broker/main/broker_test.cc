// The real broker through its socket: sandboxes on `host`, owners and tokens,
// hostile peers, refusals, and what is left after each.
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "broker/main/broker_fixture.h"

namespace cordon::broker {
namespace {

using namespace testing;

const Strings kHost = {"--allow-host-runtime"};

TEST_F(BrokerTest, RunsAProgramOnHostAndDestroysWithACompleteReceipt) {
  serve(kHost);
  Frontend frontend(io, broker);
  auto made = acquire(frontend);
  ASSERT_EQ(made.getStatus().getCode(), rpc::Code::OK)
      << made.getStatus().toString().flatten().cStr();
  EXPECT_EQ(std::string(made.getName()).size(), 13u);
  EXPECT_EQ(std::string(made.getToken()).size(), 32u);
  auto sandbox = made.getSandbox();
  auto stream = connect(sandbox);
  ASSERT_TRUE(stream->hello());
  auto exec = begin(sandbox);
  ASSERT_EQ(exec.getStatus().getCode(), rpc::Code::OK);
  stream->start(exec.getExec(), {"sh", "-c", "echo out; echo err >&2; exit 3"});
  auto outcome = stream->finish(exec.getExec());
  EXPECT_TRUE(outcome.ended);
  EXPECT_EQ(outcome.code, 3u);
  EXPECT_EQ(outcome.out, "out\n");
  EXPECT_EQ(outcome.err, "err\n");
  auto ended = end(sandbox, exec.getExec());
  EXPECT_EQ(ended.getStatus().getCode(), rpc::Code::OK);
  EXPECT_FALSE(ended.getInitExited());
  EXPECT_EQ(end(sandbox, exec.getExec()).getStatus().getReason(), rpc::Reason::NO_SUCH_EXEC);

  auto receipt = destroy(sandbox);
  EXPECT_EQ(receipt.getStatus().getCode(), rpc::Code::OK);
  EXPECT_TRUE(receipt.getReceipt().getComplete());
  EXPECT_EQ(receipt.getReceipt().getLeft().size(), 0u);
  EXPECT_GE(receipt.getReceipt().getRemoved().size(), 4u);
  // Again: the same receipt. The sandbox itself is gone.
  EXPECT_TRUE(destroy(sandbox).getReceipt().getComplete());
  EXPECT_EQ(begin(sandbox).getStatus().getReason(), rpc::Reason::SANDBOX_GONE);
  EXPECT_EQ(listed(frontend), 0u);
}

TEST_F(BrokerTest, OnlyOwnerAndTokenReachASandbox) {
  serve(kHost);
  Frontend frontend(io, broker);
  auto made = acquire(frontend);
  ASSERT_EQ(made.getStatus().getCode(), rpc::Code::OK);
  std::string name = made.getName(), token = made.getToken();

  auto right = attach(frontend, kOwner, name, token);
  EXPECT_EQ(right.getStatus().getCode(), rpc::Code::OK);
  std::string almost = token;
  almost.back() = almost.back() == '0' ? '1' : '0';
  auto wrongToken = attach(frontend, kOwner, name, almost);
  auto noToken = attach(frontend, kOwner, name, "");
  auto wrongOwner = attach(frontend, kOwner + 1, name, token);
  auto unknown = attach(frontend, kOwner, "sb-aaaaaaaaaa", token);
  // One answer for all: nothing can be learned from the difference.
  for (auto* refused : {&wrongToken, &noToken, &wrongOwner, &unknown}) {
    EXPECT_EQ(refused->getStatus().toString().flatten(), unknown.getStatus().toString().flatten());
    EXPECT_EQ(refused->getStatus().getCode(), rpc::Code::NOT_FOUND);
    EXPECT_FALSE(refused->hasSandbox());
  }
  EXPECT_EQ(listed(frontend), 1u);
  EXPECT_EQ(listed(frontend, kOwner + 1), 0u);
  auto sandbox = right.getSandbox();
  EXPECT_TRUE(destroy(sandbox).getReceipt().getComplete());
}

TEST_F(BrokerTest, RefusesWhatIsWrongAndLeavesNothing) {
  serve(kHost);
  Frontend frontend(io, broker);
  auto refused = [&](auto change, const char* runtime = "host") {
    auto answer = acquire(frontend, runtime, kOwner, change);
    EXPECT_NE(answer.getStatus().getCode(), rpc::Code::OK);
    EXPECT_FALSE(answer.hasSandbox());
    return reasonOf(answer);
  };
  auto same = [](rpc::SandboxSpec::Builder) {};
  EXPECT_EQ(refused(same, "firecracker"), rpc::Reason::UNKNOWN_RUNTIME);
  EXPECT_EQ(refused(same, "ho st"), rpc::Reason::BAD_NAME);
  EXPECT_EQ(refused([](auto s) { s.initLimits().setMemoryBytes(1); }), rpc::Reason::LIMIT_TOO_LOW);
  EXPECT_EQ(refused([](auto s) { s.initLimits().setMemoryBytes(uint64_t{1} << 60); }),
            rpc::Reason::LIMIT_TOO_HIGH);
  EXPECT_EQ(refused([](auto s) {
              s.initLimits().setMemoryBytes(64 << 20);
              s.getLimits().setDiskBytes(256 << 20);
            }),
            rpc::Reason::SCRATCH_EXCEEDS_MEMORY);
  EXPECT_EQ(refused([](auto s) { s.setTtlMs(uint64_t{1} << 50); }), rpc::Reason::LIMIT_TOO_HIGH);
  EXPECT_EQ(refused([](auto s) { s.setHostname("a b"); }), rpc::Reason::BAD_NAME);
  EXPECT_EQ(refused([](auto s) { s.setHostname("-a"); }), rpc::Reason::BAD_NAME);
  EXPECT_EQ(refused([](auto s) { s.setImage("host-usr"); }), rpc::Reason::UNKNOWN_IMAGE);
  EXPECT_EQ(refused([](auto s) { s.setImage("../etc\n"); }), rpc::Reason::BAD_NAME);
  EXPECT_EQ(broker.remains(), before);
}

TEST_F(BrokerTest, HostIsRefusedUnlessAllowed) {
  serve({});
  Frontend frontend(io, broker);
  EXPECT_EQ(reasonOf(acquire(frontend)), rpc::Reason::RUNTIME_NOT_ALLOWED);
}

TEST_F(BrokerTest, AListComesInPages) {
  serve(kHost);
  Frontend frontend(io, broker);
  std::vector<std::string> names;
  std::vector<rpc::Sandbox::Client> sandboxes;
  for (int i = 0; i < 5; ++i) {
    auto made = acquire(frontend);
    names.push_back(made.getName());
    sandboxes.push_back(made.getSandbox());
  }
  std::sort(names.begin(), names.end());
  using Page = std::pair<std::vector<std::string>, bool>;
  EXPECT_EQ(page(frontend, "", 2), (Page{{names[0], names[1]}, true}));
  EXPECT_EQ(page(frontend, names[1], 2), (Page{{names[2], names[3]}, true}));
  EXPECT_EQ(page(frontend, names[3], 2), (Page{{names[4]}, false}));
  EXPECT_EQ(page(frontend, names[4], 2), (Page{{}, false}));
  // One that went meanwhile is a place all the same.
  EXPECT_EQ(page(frontend, names[1] + "x", 5).first.front(), names[2]);
  EXPECT_EQ(page(frontend, "", 0).first.size(), 5u);
  for (auto& sandbox : sandboxes) EXPECT_TRUE(destroy(sandbox).getReceipt().getComplete());
}

TEST_F(BrokerTest, ListsRuntimesWithWhatIsWrongWithThem) {
  serve({"--runc", "/nonexistent", "--default-runtime", "runc"});
  Frontend frontend(io, broker);
  auto answer = await(kj::Promise<capnp::Response<rpc::AgentPort::RuntimesResults>>(
      frontend.port().runtimesRequest().send()));
  ASSERT_EQ(answer.getRuntimes().size(), 3u);
  auto jail = answer.getRuntimes()[0];
  EXPECT_EQ(std::string(jail.getName()), "jail");
  EXPECT_FALSE(jail.getIsDefault());
  auto runc = answer.getRuntimes()[1];
  EXPECT_EQ(std::string(runc.getName()), "runc");
  EXPECT_FALSE(runc.getAvailable());
  EXPECT_NE(std::string(runc.getReason()), "");
  EXPECT_TRUE(runc.getIsDefault());
  EXPECT_FALSE(answer.getRuntimes()[2].getIsSandbox());
}

TEST_F(BrokerTest, CapsSandboxesOverallAndPerOwner) {
  serve({"--allow-host-runtime", "--max-sandboxes", "3", "--max-per-owner", "2"});
  Frontend frontend(io, broker);
  std::vector<rpc::Sandbox::Client> made;
  for (uint32_t owner : {1u, 1u, 2u}) {
    auto answer = acquire(frontend, "host", owner);
    ASSERT_EQ(answer.getStatus().getCode(), rpc::Code::OK);
    made.push_back(answer.getSandbox());
  }
  auto perOwner = acquire(frontend, "host", 1);
  EXPECT_EQ(reasonOf(perOwner), rpc::Reason::TOO_MANY_SANDBOXES);
  EXPECT_EQ(perOwner.getStatus().getLimit(), 2u);
  auto overall = acquire(frontend, "host", 2);
  EXPECT_EQ(reasonOf(overall), rpc::Reason::TOO_MANY_SANDBOXES);
  EXPECT_EQ(overall.getStatus().getLimit(), 3u);
  for (auto& sandbox : made) EXPECT_TRUE(destroy(sandbox).getReceipt().getComplete());
}

TEST_F(BrokerTest, TimeToLiveAndIdleLimitDestroy) {
  serve(kHost);
  Frontend frontend(io, broker);
  auto shortLived =
      acquire(frontend, "host", kOwner, [](rpc::SandboxSpec::Builder s) { s.setTtlMs(300); });
  ASSERT_EQ(shortLived.getStatus().getCode(), rpc::Code::OK);
  auto idler =
      acquire(frontend, "host", kOwner, [](rpc::SandboxSpec::Builder s) { s.setIdleMs(300); });
  ASSERT_EQ(idler.getStatus().getCode(), rpc::Code::OK);
  auto busy =
      acquire(frontend, "host", kOwner, [](rpc::SandboxSpec::Builder s) { s.setIdleMs(400); });
  ASSERT_EQ(busy.getStatus().getCode(), rpc::Code::OK);
  auto sandbox = busy.getSandbox();
  auto exec = begin(sandbox);
  EXPECT_TRUE(eventually([&] { return listed(frontend) == 1; }));
  // An exec that has not ended keeps it from being idle, however long.
  auto past = io.provider->getTimer().now() + 600 * kj::MILLISECONDS;
  EXPECT_TRUE(
      eventually([&] { return listed(frontend) == 1 && io.provider->getTimer().now() > past; }));
  EXPECT_EQ(end(sandbox, exec.getExec()).getStatus().getCode(), rpc::Code::OK);
  EXPECT_TRUE(eventually([&] { return listed(frontend) == 0; }));
}

TEST_F(BrokerTest, AnInitThatDiesMakesTheSandboxLost) {
  serve(kHost);
  Frontend frontend(io, broker);
  auto made = acquire(frontend);
  ASSERT_EQ(made.getStatus().getCode(), rpc::Code::OK);
  auto sandbox = made.getSandbox();
  auto stream = connect(sandbox);
  ASSERT_TRUE(stream->hello());
  auto exec = begin(sandbox);
  stream->start(exec.getExec(), {"sh", "-c", "echo up; sleep 1000"});
  ASSERT_TRUE(stream->sees(exec.getExec(), "up"));
  auto children = childrenOf(broker.pid());
  ASSERT_EQ(children.size(), 1u);
  ASSERT_EQ(kill(children[0], SIGKILL), 0);
  EXPECT_FALSE(stream->finish(exec.getExec()).ended);
  auto ended = end(sandbox, exec.getExec(), true);
  EXPECT_EQ(ended.getStatus().getCode(), rpc::Code::OK);
  EXPECT_TRUE(ended.getInitExited());
  EXPECT_EQ(ended.getInitSignal(), uint32_t{SIGKILL});
  EXPECT_EQ(begin(sandbox).getStatus().getReason(), rpc::Reason::SANDBOX_GONE);
  auto again = attach(frontend, kOwner, std::string(made.getName()), std::string(made.getToken()));
  ASSERT_EQ(again.getStatus().getCode(), rpc::Code::OK);
  auto info = await(kj::Promise<capnp::Response<rpc::Sandbox::InspectResults>>(
      again.getSandbox().inspectRequest().send()));
  EXPECT_EQ(info.getInfo().getState(), rpc::SandboxState::LOST);
  EXPECT_TRUE(destroy(sandbox).getReceipt().getComplete());
}

TEST_F(BrokerTest, SandboxesOutliveTheirFrontend) {
  serve(kHost);
  std::string name, token;
  {
    Frontend frontend(io, broker);
    auto made = acquire(frontend);
    ASSERT_EQ(made.getStatus().getCode(), rpc::Code::OK);
    name = std::string(made.getName());
    token = std::string(made.getToken());
  }
  Frontend next(io, broker);
  auto again = attach(next, kOwner, name, token);
  ASSERT_EQ(again.getStatus().getCode(), rpc::Code::OK);
  auto sandbox = again.getSandbox();
  EXPECT_TRUE(destroy(sandbox).getReceipt().getComplete());
}

TEST_F(BrokerTest, ManySandboxesAtOnceAndConcurrentDestroysShareOne) {
  serve(kHost);
  Frontend frontend(io, broker);
  std::vector<rpc::Sandbox::Client> sandboxes;
  auto pending = kj::heapArrayBuilder<kj::Promise<void>>(8);
  for (int i = 0; i < 8; ++i) {
    auto request = frontend.port().acquireRequest();
    request.initOwner().setUid(kOwner);
    request.initSpec().setRuntime("host");
    pending.add(request.send().then([&](Acquired&& answer) {
      EXPECT_EQ(answer.getStatus().getCode(), rpc::Code::OK);
      sandboxes.push_back(answer.getSandbox());
    }));
  }
  await(kj::joinPromises(pending.finish()));
  ASSERT_EQ(sandboxes.size(), 8u);
  auto destroys = kj::heapArrayBuilder<kj::Promise<void>>(16);
  for (auto& sandbox : sandboxes) {
    for (int twice = 0; twice < 2; ++twice) {
      destroys.add(sandbox.destroyRequest().send().then(
          [](auto&& answer) { EXPECT_TRUE(answer.getReceipt().getComplete()); }));
    }
  }
  await(kj::joinPromises(destroys.finish()));
  EXPECT_EQ(listed(frontend), 0u);
}

TEST_F(BrokerTest, SigtermDestroysEverythingAndExitsZero) {
  serve(kHost);
  Frontend frontend(io, broker);
  auto made = acquire(frontend);
  ASSERT_EQ(made.getStatus().getCode(), rpc::Code::OK);
  auto sandbox = made.getSandbox();
  auto stream = connect(sandbox);
  ASSERT_TRUE(stream->hello());
  auto exec = begin(sandbox);
  stream->start(exec.getExec(), {"sh", "-c", "(setsid sleep 1000 &) ; echo up; sleep 1000"});
  ASSERT_TRUE(stream->sees(exec.getExec(), "up"));
  broker.signal(SIGTERM);
  EXPECT_EQ(broker.wait(), 0) << broker.log();
  EXPECT_TRUE(eventually([&] { return broker.remains().empty(); }))
      << ::testing::PrintToString(broker.remains());
}

TEST_F(BrokerTest, ASecondBrokerOnTheSameStateIsRefused) {
  serve(kHost);
  pid_t first = broker.pid();
  Frontend frontend(io, broker);
  auto made = acquire(frontend);
  ASSERT_EQ(made.getStatus().getCode(), rpc::Code::OK);
  // By hand: the fixture's broker must stay the one it looks after.
  pid_t second = fork();
  ASSERT_GE(second, 0);
  if (second == 0) {
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr anywhere{AF_UNIX, {}};
    if (bind(fd, &anywhere, sizeof(sa_family_t)) < 0 || listen(fd, 1) < 0 || dup2(fd, 3) < 0) {
      _exit(120);
    }
    setenv("LISTEN_PID", std::to_string(getpid()).c_str(), 1);
    setenv("LISTEN_FDS", "1", 1);
    setenv("LISTEN_FDNAMES", "broker", 1);
    freopen("/dev/null", "w", stderr);
    execl(getenv("CORDON_BROKER"), "cordon-broker", "--state", broker.state().c_str(), "--vm-agent",
          getenv("CORDON_VM_AGENT"), nullptr);
    _exit(121);
  }
  int status = 0;
  ASSERT_EQ(waitpid(second, &status, 0), second);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 1);
  // The first one and its sandbox don't notice.
  EXPECT_EQ(first, broker.pid());
  auto sandbox = made.getSandbox();
  EXPECT_TRUE(destroy(sandbox).getReceipt().getComplete());
}

// ---- hostile peers

int rawConnection(const std::string& path) {
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un where{};
  where.sun_family = AF_UNIX;
  snprintf(where.sun_path, sizeof(where.sun_path), "%s", path.c_str());
  KJ_SYSCALL(::connect(fd, reinterpret_cast<sockaddr*>(&where), sizeof(where)));
  timeval patience{10, 0};
  KJ_SYSCALL(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)));
  return fd;
}

// True when the broker ends the connection (nothing but an abort is said).
bool isDropped(int fd) {
  char buffer[4096];
  for (;;) {
    ssize_t n = recv(fd, buffer, sizeof(buffer), 0);
    if (n == 0) return true;
    if (n < 0) return errno == ECONNRESET;
  }
}

TEST_F(BrokerTest, HostileBytesEndOnlyTheirOwnConnection) {
  serve(kHost);
  Frontend good(io, broker);
  auto made = acquire(good);
  ASSERT_EQ(made.getStatus().getCode(), rpc::Code::OK);

  std::string garbage(65536, '\xab');
  std::string tooManySegments("\xff\xff\xff\x7f\x01\x00\x00\x00", 8);
  // One segment of 2 GiB.
  std::string tooLarge("\x00\x00\x00\x00\xff\xff\xff\x0f", 8);
  // One word that is a struct pointer to far outside.
  std::string wildPointer("\x00\x00\x00\x00\x01\x00\x00\x00\xfc\xff\xff\x7f\xff\x00\xff\x00", 16);
  for (auto& bytes : {garbage, tooManySegments, tooLarge, wildPointer}) {
    int fd = rawConnection(broker.socketPath());
    send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    EXPECT_TRUE(isDropped(fd)) << bytes.size();
    close(fd);
  }
  // Half a frame, then the end; and one that stays silent meanwhile.
  int silent = rawConnection(broker.socketPath());
  int half = rawConnection(broker.socketPath());
  send(half, tooLarge.data(), 5, MSG_NOSIGNAL);
  shutdown(half, SHUT_WR);
  EXPECT_TRUE(isDropped(half));
  close(half);
  EXPECT_TRUE(broker.running());
  EXPECT_EQ(listed(good), 1u);
  close(silent);
  auto sandbox = made.getSandbox();
  EXPECT_TRUE(destroy(sandbox).getReceipt().getComplete());
}

TEST_F(BrokerTest, ConnectionsAreCapped) {
  serve(kHost);
  std::vector<int> held;
  for (int i = 0; i < 16; ++i) held.push_back(rawConnection(broker.socketPath()));
  int extra = rawConnection(broker.socketPath());
  EXPECT_TRUE(isDropped(extra));
  close(extra);
  for (int fd : held) close(fd);
  // Room again.
  EXPECT_TRUE(eventually([&] {
    int fd = rawConnection(broker.socketPath());
    char byte;
    bool open = recv(fd, &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN;
    if (open) {
      pollfd p{fd, POLLIN, 0};
      open = poll(&p, 1, 100) == 0;
    }
    close(fd);
    return open;
  }));
}

TEST_F(BrokerTest, AnotherUidIsDisconnectedAtOnce) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another uid";
  serve(kHost);
  pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (setgid(65534) < 0 || setuid(65534) < 0) _exit(2);
    int fd = rawConnection(broker.socketPath());
    _exit(isDropped(fd) ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_NE(broker.log().find("connection of uid 65534 refused"), std::string::npos);
  Frontend frontend(io, broker);
  EXPECT_EQ(listed(frontend), 0u);
}

// ---- a broker that dies

TEST_F(BrokerTest, TheNextBrokerFinishesWhatAKilledOneLeft) {
  serve(kHost);
  {
    Frontend frontend(io, broker);
    auto made = acquire(frontend);
    ASSERT_EQ(made.getStatus().getCode(), rpc::Code::OK);
    auto sandbox = made.getSandbox();
    auto stream = connect(sandbox);
    ASSERT_TRUE(stream->hello());
    auto exec = begin(sandbox);
    stream->start(exec.getExec(), {"sh", "-c", "(setsid sleep 1000 &) ; echo up; sleep 1000"});
    ASSERT_TRUE(stream->sees(exec.getExec(), "up"));
    broker.signal(SIGKILL);
    EXPECT_EQ(broker.wait(), 128 + SIGKILL);
  }
  // The agent sees the end of its control socket and takes everything along.
  EXPECT_TRUE(eventually([&] {
    for (auto& item : broker.remains()) {
      if (item.find("process") == 0) return false;
    }
    return true;
  })) << ::testing::PrintToString(broker.remains());
  EXPECT_FALSE(broker.remains().empty());
  ASSERT_TRUE(broker.start()) << broker.log();
  Frontend frontend(io, broker);
  EXPECT_EQ(listed(frontend), 0u);
  EXPECT_TRUE(eventually([&] { return broker.remains() == before; }))
      << ::testing::PrintToString(broker.remains());
}

TEST_F(BrokerTest, ADamagedRecordIsCleanedUpByItsName) {
  serve(kHost);
  broker.signal(SIGKILL);
  broker.wait();
  std::string name = broker.state() + "/records/sb-abcdefghij";
  FILE* file = fopen(name.c_str(), "w");
  ASSERT_NE(file, nullptr);
  fputs("this is no record", file);
  fclose(file);
  ASSERT_TRUE(broker.start()) << broker.log();
  EXPECT_TRUE(eventually([&] { return broker.remains() == before; }))
      << ::testing::PrintToString(broker.remains());
}

}  // namespace
}  // namespace cordon::broker
