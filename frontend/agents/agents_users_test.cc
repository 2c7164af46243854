// Connections and calls of several users, and their limits.
#include <grpcpp/create_channel_posix.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <kj/debug.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "frontend/agents/agents_fixture.h"
#include "ipc/fdpass.h"

namespace cordon::agents {
namespace {

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

}  // namespace
}  // namespace cordon::agents
