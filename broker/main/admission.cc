#include "broker/main/admission.h"

#include <errno.h>
#include <kj/debug.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>

namespace cordon::broker {

namespace {
constexpr uint kMaxFdsPerMessage = 8;
constexpr uint64_t kMessageWords = 1024 * 1024 / sizeof(capnp::word);
constexpr int kNesting = 32;
// Words of calls that one peer may have in progress; past it we stop reading.
constexpr size_t kFlowWords = 1024 * 1024 / sizeof(capnp::word);
constexpr int kAcceptsPerTurn = 16;
constexpr auto kAcceptPause = 100 * kj::MILLISECONDS;
constexpr auto kRefusalLogInterval = 1 * kj::SECONDS;

capnp::ReaderOptions readerOptions() {
  capnp::ReaderOptions options;
  options.traversalLimitInWords = kMessageWords;
  options.nestingLimit = kNesting;
  return options;
}

ucred peerOf(int socket) {
  ucred peer{};
  socklen_t length = sizeof(peer);
  KJ_SYSCALL(getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length));
  return peer;
}
}  // namespace

struct Admission::Connection {
  Connection(kj::Own<PeerScope> peer, kj::Own<kj::AsyncCapabilityStream> accepted,
             capnp::Capability::Client bootstrap)
      : scope(kj::mv(peer)),
        stream(kj::mv(accepted)),
        network(*stream, kMaxFdsPerMessage, capnp::rpc::twoparty::Side::SERVER, readerOptions()),
        rpc(capnp::makeRpcServer(network, kj::mv(bootstrap))) {
    rpc.setFlowLimit(kFlowWords);
  }

  kj::Own<PeerScope> scope;
  kj::Own<kj::AsyncCapabilityStream> stream;
  capnp::TwoPartyVatNetwork network;
  capnp::RpcSystem<capnp::rpc::twoparty::VatId> rpc;
};

Admission::Admission(kj::AsyncIoContext& io, TurnClock& clock, kj::AutoCloseFd listener,
                     Peers peers)
    : port_(io.unixEventPort),
      provider_(*io.lowLevelProvider),
      clock_(clock),
      listener_(kj::mv(listener)),
      observer_(port_, listener_.get(), kj::UnixEventPort::FdObserver::OBSERVE_READ),
      peers_(kj::mv(peers)),
      refusalLogged_(port_.getTimer().now() - kRefusalLogInterval),
      tasks_(*this) {}

Admission::~Admission() noexcept(false) {
  disconnectAll();
}

kj::Promise<void> Admission::accept() {
  auto turn = clock_.turn("accept");
  for (int n = 0; n < kAcceptsPerTurn; ++n) {
    int fd = accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) {
      // One connection that can't be served is no reason to serve no other.
      auto fault = kj::runCatchingExceptions([&]() { admit(kj::AutoCloseFd(fd)); });
      KJ_IF_MAYBE (why, fault) {
        spdlog::error("a connection was dropped: {}", why->getDescription().cStr());
      }
      continue;
    }
    int error = errno;
    switch (error) {
      case EAGAIN:
        return observer_.whenBecomesReadable().then([this]() { return accept(); });
      case EINTR:
      case ECONNABORTED:
      case EPERM:
        continue;
      // EMFILE and the like pass; whatever else it is, others must still be
      // heard when it does.
      default:
        spdlog::warn("accept: {}: waiting", strerror(error));
        return port_.getTimer().afterDelay(kAcceptPause).then([this]() { return accept(); });
    }
  }
  return kj::evalLater([this]() { return accept(); });
}

void Admission::admit(kj::AutoCloseFd socket) {
  ucred peer = peerOf(socket.get());
  if (peer.uid != peers_.agentsUid) return refuse("no frontend of ours", peer.uid);
  if (connections_.size() >= kMaxConnections) return refuse("too many connections", peer.uid);

  uint64_t id = ++lastId_;
  auto scope = kj::refcounted<PeerScope>(id, peer.uid);
  auto bootstrap = peers_.agentPort(kj::addRef(*scope));
  int fd = socket.release();
  auto stream = provider_.wrapUnixSocketFd(fd, kj::LowLevelAsyncIoProvider::TAKE_OWNERSHIP |
                                                   kj::LowLevelAsyncIoProvider::ALREADY_CLOEXEC |
                                                   kj::LowLevelAsyncIoProvider::ALREADY_NONBLOCK);
  auto connection = kj::heap<Connection>(kj::mv(scope), kj::mv(stream), kj::mv(bootstrap));
  auto over = connection->network.onDisconnect();
  connections_[id] = kj::mv(connection);
  // In a turn of its own: the connection must not be dropped from within its
  // own callback.
  tasks_.add(over.then([]() {}, [](kj::Exception&&) {}).then([this, id]() {
    return kj::evalLater([this, id]() { disconnected(id); });
  }));
  spdlog::info("connection {} of uid {}", id, peer.uid);
}

void Admission::refuse(const char* why, uid_t uid) {
  auto now = port_.getTimer().now();
  if (now - refusalLogged_ < kRefusalLogInterval) {
    ++refusedUnlogged_;
    return;
  }
  spdlog::warn("connection of uid {} refused: {} ({} more not logged)", uid, why, refusedUnlogged_);
  refusedUnlogged_ = 0;
  refusalLogged_ = now;
}

void Admission::disconnected(uint64_t id) {
  auto turn = clock_.turn("disconnect");
  auto it = connections_.find(id);
  if (it == connections_.end()) return;
  auto connection = kj::mv(it->second);
  connections_.erase(it);
  connection->scope->connected = false;
  spdlog::info("connection {} ended", id);
  peers_.gone(*connection->scope);
}

void Admission::disconnectAll() {
  while (!connections_.empty()) disconnected(connections_.begin()->first);
}

void Admission::taskFailed(kj::Exception&& exception) {
  spdlog::error("connection: {}", exception.getDescription().cStr());
}

}  // namespace cordon::broker
