// Who may talk to the broker, and as what.
//
// The accept loop is ours: the uid of the peer (SO_PEERCRED of the accepted
// connection) decides which bootstrap capability it gets. The configured uid of
// cordon-agents gets an AgentPort; everyone else is disconnected before a byte
// of theirs is read. What a peer sends can only end its own connection.
#pragma once
#include <capnp/rpc-twoparty.h>
#include <kj/async-io.h>
#include <kj/async-unix.h>
#include <kj/function.h>
#include <kj/timer.h>

#include <cstdint>
#include <map>

#include "broker/main/peer_scope.h"
#include "broker/main/turn_clock.h"

namespace cordon::broker {

class Admission final : private kj::TaskSet::ErrorHandler {
 public:
  static constexpr size_t kMaxConnections = 16;

  struct Peers {
    uid_t agentsUid = 0;
    // The AgentPort of one connection.
    kj::Function<capnp::Capability::Client(kj::Own<PeerScope>)> agentPort;
    // The connection is over.
    kj::Function<void(PeerScope&)> gone;
  };

  Admission(kj::AsyncIoContext& io, TurnClock& clock, kj::AutoCloseFd listener, Peers peers);
  ~Admission() noexcept(false);
  KJ_DISALLOW_COPY(Admission);

  // Accepts until it is dropped.
  kj::Promise<void> accept();
  // Ends every connection.
  void disconnectAll();

 private:
  struct Connection;
  void admit(kj::AutoCloseFd socket);
  void refuse(const char* why, uid_t uid);
  void disconnected(uint64_t id);
  void taskFailed(kj::Exception&& exception) override;

  kj::UnixEventPort& port_;
  kj::LowLevelAsyncIoProvider& provider_;
  TurnClock& clock_;
  kj::AutoCloseFd listener_;
  kj::UnixEventPort::FdObserver observer_;
  Peers peers_;
  uint64_t lastId_ = 0;
  uint64_t refusedUnlogged_ = 0;
  kj::TimePoint refusalLogged_;
  std::map<uint64_t, kj::Own<Connection>> connections_;
  kj::TaskSet tasks_;
};

}  // namespace cordon::broker
