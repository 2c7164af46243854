// The real broker while other brokers are at the registry of id ranges.
#include <fcntl.h>
#include <unistd.h>

#include "broker/main/broker_fixture.h"

namespace cordon::broker {
namespace {

using namespace testing;

// Other brokers that are at every id range: for a second, and for good.
TEST_F(BrokerTest, OthersAtTheIdRegistryAreWaitedForWhileOthersAreServed) {
  if (geteuid() != 0) GTEST_SKIP() << "id ranges are root's";
  std::string registry = broker.directory() + "/ids";
  serve({"--allow-host-runtime", "--id-registry", registry});
  Frontend frontend(io, broker);
  auto acquiring = [&](const char* runtime) {
    auto request = frontend.port().acquireRequest();
    request.initOwner().setUid(kOwner);
    request.getSpec().setRuntime(runtime);
    return kj::Promise<Acquired>(request.send());
  };
  auto lockAll = [&]() {
    int fd;
    KJ_SYSCALL(fd = open((registry + "/.lock").c_str(), O_RDWR | O_CLOEXEC));
    kj::AutoCloseFd others(fd);
    struct flock lock {};
    lock.l_type = F_WRLCK;
    KJ_SYSCALL(fcntl(fd, F_OFD_SETLK, &lock));
    return others;
  };
  // `host` has no range of its own.
  auto serves = [&]() {
    auto made = acquire(frontend, "host");
    ASSERT_EQ(made.getStatus().getCode(), rpc::Code::OK);
    auto sandbox = made.getSandbox();
    EXPECT_TRUE(destroy(sandbox).getReceipt().getComplete());
  };
  auto second = [&]() { await(io.provider->getTimer().afterDelay(1 * kj::SECONDS)); };

  auto others = lockAll();
  auto first = acquiring("runc");
  serves();
  second();
  EXPECT_FALSE(first.poll(io.waitScope));
  others = nullptr;
  auto made = await(kj::mv(first));
  ASSERT_EQ(made.getStatus().getCode(), rpc::Code::OK);

  others = lockAll();
  auto sandbox = made.getSandbox();
  using Destroyed = capnp::Response<rpc::Sandbox::DestroyResults>;
  kj::Promise<Destroyed> destroyed = sandbox.destroyRequest().send();
  serves();
  second();
  EXPECT_FALSE(destroyed.poll(io.waitScope));
  others = nullptr;
  EXPECT_TRUE(await(kj::mv(destroyed)).getReceipt().getComplete());

  others = lockAll();
  auto refused = acquiring("runc");
  serves();
  auto answer = await(kj::mv(refused));
  EXPECT_EQ(reasonOf(answer), rpc::Reason::HOST_LIMIT);
  EXPECT_NE(std::string(answer.getStatus().getDetail()).find("id registry is locked"),
            std::string::npos);
}

}  // namespace
}  // namespace cordon::broker
