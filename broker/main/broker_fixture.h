// The fixture of tests against a real broker: starts one, asks it as a frontend
// would, and looks for what is left of it at the end of each test.
#pragma once
#include <gtest/gtest.h>
#include <kj/debug.h>
#include <signal.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "broker/main/broker_testing.h"

namespace cordon::broker::testing {

using Strings = std::vector<std::string>;

constexpr uint32_t kOwner = 4242;

class BrokerTest : public ::testing::Test {
 public:
  ~BrokerTest() noexcept override {}  // kj's members may throw in theirs

 protected:
  // `options` start a broker; the test goes on with it as the only one.
  void serve(Strings options) {
    broker.setOptions(std::move(options));
    ASSERT_TRUE(broker.start()) << broker.log();
    before = broker.remains();
  }

  void TearDown() override {
    if (broker.running()) {
      EXPECT_TRUE(eventually([&] { return broker.remains() == before; }))
          << ::testing::PrintToString(broker.remains());
      broker.signal(SIGTERM);
      EXPECT_EQ(broker.wait(), 0) << broker.log();
    }
    if (!broker.instance().empty()) {
      EXPECT_TRUE(eventually([&] { return broker.remains().empty(); }))
          << ::testing::PrintToString(broker.remains());
    }
    if (HasFailure() || getenv("CORDON_TEST_LOG") != nullptr)
      fprintf(stderr, "%s", broker.log().c_str());
  }

  template <typename T>
  T await(kj::Promise<T> promise, int seconds = 40) {
    return io.provider->getTimer()
        .timeoutAfter(seconds * kj::SECONDS, kj::mv(promise))
        .wait(io.waitScope);
  }

  using Acquired = capnp::Response<rpc::AgentPort::AcquireResults>;
  Acquired acquire(Frontend& frontend, const char* runtime = "host", uint32_t owner = kOwner,
                   const std::function<void(rpc::SandboxSpec::Builder)>& change = nullptr) {
    auto request = frontend.port().acquireRequest();
    request.initOwner().setUid(owner);
    auto spec = request.initSpec();
    spec.setRuntime(runtime);
    if (change) change(spec);
    return await(kj::Promise<Acquired>(request.send()));
  }

  rpc::Reason reasonOf(const Acquired& response) { return response.getStatus().getReason(); }

  auto attach(Frontend& frontend, uint32_t owner, const std::string& name,
              const std::string& token) {
    auto request = frontend.port().attachRequest();
    request.initOwner().setUid(owner);
    request.setName(name);
    request.setToken(token);
    return await(kj::Promise<capnp::Response<rpc::AgentPort::AttachResults>>(request.send()));
  }

  uint listed(Frontend& frontend, uint32_t owner = kOwner) {
    auto request = frontend.port().listRequest();
    request.initOwner().setUid(owner);
    auto answer = await(kj::Promise<capnp::Response<rpc::AgentPort::ListResults>>(request.send()));
    return answer.getSandboxes().size();
  }

  // The names of a page, and whether there are more.
  std::pair<std::vector<std::string>, bool> page(Frontend& frontend, const std::string& after,
                                                 uint32_t most) {
    auto request = frontend.port().listRequest();
    request.initOwner().setUid(kOwner);
    request.setAfter(after);
    request.setMost(most);
    auto answer = await(kj::Promise<capnp::Response<rpc::AgentPort::ListResults>>(request.send()));
    std::vector<std::string> names;
    for (auto info : answer.getSandboxes()) names.push_back(info.getName());
    return {names, answer.getMore()};
  }

  std::unique_ptr<GuestStream> connect(rpc::Sandbox::Client& sandbox) {
    auto request = sandbox.connectRequest();
    auto answer = await(kj::Promise<capnp::Response<rpc::Sandbox::ConnectResults>>(request.send()));
    KJ_REQUIRE(answer.getStatus().getCode() == rpc::Code::OK, answer.getStatus());
    auto fd = await(answer.getStream().getFd());
    return std::make_unique<GuestStream>(KJ_REQUIRE_NONNULL(fd));
  }

  using Begun = capnp::Response<rpc::Sandbox::BeginExecResults>;
  Begun begin(rpc::Sandbox::Client& sandbox, uint64_t cpuTimeMs = 0) {
    auto request = sandbox.beginExecRequest();
    request.initLimits().setCpuTimeMs(cpuTimeMs);
    return await(kj::Promise<Begun>(request.send()));
  }

  using Ended = capnp::Response<rpc::Sandbox::EndExecResults>;
  Ended end(rpc::Sandbox::Client& sandbox, uint32_t exec, bool streamLost = false) {
    auto request = sandbox.endExecRequest();
    request.setExec(exec);
    request.setStreamLost(streamLost);
    return await(kj::Promise<Ended>(request.send()));
  }

  capnp::Response<rpc::Sandbox::DestroyResults> destroy(rpc::Sandbox::Client& sandbox) {
    return await(kj::Promise<capnp::Response<rpc::Sandbox::DestroyResults>>(
        sandbox.destroyRequest().send()));
  }

  kj::AsyncIoContext io = kj::setupAsyncIo();
  BrokerProcess broker;
  Strings before;
};

}  // namespace cordon::broker::testing
