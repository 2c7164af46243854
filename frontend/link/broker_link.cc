#include "frontend/link/broker_link.h"

#include <errno.h>
#include <kj/debug.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

namespace cordon::link {
namespace {

constexpr auto kFirstPause = 10 * kj::MILLISECONDS;
constexpr auto kLongestPause = 1 * kj::SECONDS;
// A connection that lasted this long was a good one.
constexpr auto kGoodAfter = 1 * kj::SECONDS;
// One stream's fd per answer.
constexpr kj::uint kMaxFds = 1;
// A listing of every sandbox with its limits is far below this.
constexpr uint64_t kMaxMessageWords = 512 * 1024;

capnp::ReaderOptions options() {
  capnp::ReaderOptions result;
  result.traversalLimitInWords = kMaxMessageWords;
  result.nestingLimit = 16;
  return result;
}

}  // namespace

struct BrokerLink::Connection {
  Connection(kj::Own<kj::AsyncCapabilityStream> s, kj::TimePoint now)
      : stream(kj::mv(s)),
        network(*stream, kMaxFds, capnp::rpc::twoparty::Side::CLIENT, options()),
        system(capnp::makeRpcClient(network)),
        since(now),
        lost(network.onDisconnect().fork()) {}

  rpc::AgentPort::Client bootstrap() {
    capnp::MallocMessageBuilder message(8);
    auto id = message.initRoot<capnp::rpc::twoparty::VatId>();
    id.setSide(capnp::rpc::twoparty::Side::SERVER);
    return system.bootstrap(id).castAs<rpc::AgentPort>();
  }

  kj::Own<kj::AsyncCapabilityStream> stream;
  capnp::TwoPartyVatNetwork network;
  capnp::RpcSystem<capnp::rpc::twoparty::VatId> system;
  kj::TimePoint since;
  kj::ForkedPromise<void> lost;
  kj::Maybe<rpc::AgentPort::Client> port;
};

BrokerLink::BrokerLink(kj::AsyncIoContext& io, Options options)
    : io_(io), options_(kj::mv(options)), pause_(kFirstPause) {
  KJ_REQUIRE(options_.path.size() < sizeof(sockaddr_un::sun_path), "the broker's path is too long");
  auto paf = kj::newPromiseAndFulfiller<void>();
  firstUpFulfiller_ = kj::mv(paf.fulfiller);
  firstUp_ = paf.promise.fork();
  task_ = keepConnected().eagerlyEvaluate(
      [](kj::Exception&& e) { KJ_LOG(FATAL, "the broker link stopped", e); });
}

BrokerLink::~BrokerLink() noexcept(false) {}

kj::Maybe<rpc::AgentPort::Client> BrokerLink::port() {
  KJ_IF_MAYBE (connection, connection_) return (*connection)->port;
  return nullptr;
}

kj::Promise<void> BrokerLink::whenLost() {
  KJ_IF_MAYBE (connection, connection_) return (*connection)->lost.addBranch();
  return kj::READY_NOW;
}

kj::Promise<void> BrokerLink::keepConnected() {
  return kj::evalNow([this] { return serve(); })
      .catch_([this](kj::Exception&& e) {
        // Short of descriptors or memory: an attempt that failed as others do.
        connection_ = nullptr;
        options_.onChange(false, e.getDescription().cStr());
      })
      .then([this]() -> kj::Promise<void> {
        auto pause = pause_;
        pause_ = kj::min(pause_ * 2, kLongestPause);
        return io_.provider->getTimer().afterDelay(pause).then([this] { return keepConnected(); });
      });
}

// One connection, from its beginning to its end.
kj::Promise<void> BrokerLink::serve() {
  std::string error;
  auto stream = connect(error);
  KJ_IF_MAYBE (s, stream) {
    auto own = kj::heap<Connection>(kj::mv(*s), io_.provider->getTimer().now());
    own->port = own->bootstrap();
    auto lost = own->lost.addBranch();
    connection_ = kj::mv(own);
    options_.onChange(true, "");
    firstUpFulfiller_->fulfill();
    return lost.then([] {}, [](kj::Exception&&) {}).then([this] {
      // From evalLater: others wait for the same loss and go first.
      return kj::evalLater([this] {
        auto& connection = *KJ_ASSERT_NONNULL(connection_);
        if (io_.provider->getTimer().now() - connection.since > kGoodAfter) pause_ = kFirstPause;
        connection_ = nullptr;
        options_.onChange(false, "the connection was lost");
      });
    });
  }
  options_.onChange(false, error);
  return kj::READY_NOW;
}

kj::Maybe<kj::Own<kj::AsyncCapabilityStream>> BrokerLink::connect(std::string& error) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path, options_.path.data(), options_.path.size());
  int raw;
  KJ_SYSCALL(raw = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), "socket");
  kj::AutoCloseFd fd(raw);
  // A unix socket connects at once or not at all (EAGAIN: its backlog is full).
  if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) < 0) {
    error = strerror(errno);
    return nullptr;
  }
  return io_.lowLevelProvider->wrapUnixSocketFd(
      kj::mv(fd),
      kj::LowLevelAsyncIoProvider::ALREADY_CLOEXEC | kj::LowLevelAsyncIoProvider::ALREADY_NONBLOCK);
}

}  // namespace cordon::link
