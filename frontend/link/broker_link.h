// The connection of a frontend to the broker, kept alive.
//
// Lives on a LoopThread and is used there only. When the broker goes away, the
// capabilities of that connection are dead (calls on them fail as
// DISCONNECTED), and the link connects again: at once, then with a growing
// pause while the broker refuses or drops it.
#pragma once
#include <capnp/rpc-twoparty.h>
#include <kj/async-io.h>
#include <kj/async-unix.h>

#include <functional>
#include <string>

#include "ipc/broker.capnp.h"

namespace cordon::link {

class BrokerLink {
 public:
  struct Options {
    std::string path;  // the broker's unix socket
    // Told on this thread about every change; for the log. `error` is why the
    // connection could not be made or was lost.
    std::function<void(bool up, const std::string& error)> onChange;
  };

  BrokerLink(kj::AsyncIoContext& io, Options options);
  ~BrokerLink() noexcept(false);
  KJ_DISALLOW_COPY(BrokerLink);

  // The broker's capability, or nothing while there is no connection (answer
  // UNAVAILABLE). Valid until whenLost().
  kj::Maybe<rpc::AgentPort::Client> port();

  // Resolves when the present connection is lost; at once when there is none.
  kj::Promise<void> whenLost();

  // Resolves at the first connection.
  kj::Promise<void> whenFirstUp() { return firstUp_.addBranch(); }

 private:
  struct Connection;

  kj::Promise<void> keepConnected();
  kj::Promise<void> serve();
  kj::Maybe<kj::Own<kj::AsyncCapabilityStream>> connect(std::string& error);

  kj::AsyncIoContext& io_;
  Options options_;
  kj::Maybe<kj::Own<Connection>> connection_;
  kj::Duration pause_;
  kj::Own<kj::PromiseFulfiller<void>> firstUpFulfiller_;
  kj::ForkedPromise<void> firstUp_ = nullptr;
  kj::Promise<void> task_ = nullptr;
};

}  // namespace cordon::link
