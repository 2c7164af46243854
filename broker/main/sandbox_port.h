// The Sandbox capability of ipc/broker.capnp, for one frontend's connection.
#pragma once
#include <kj/refcount.h>

#include "broker/main/destruction.h"
#include "broker/main/peer_scope.h"
#include "broker/main/sandbox.h"
#include "broker/main/services.h"

namespace cordon::broker {

// Dropping it destroys nothing.
rpc::Sandbox::Client makeSandboxPort(Services& services, Destruction& destruction,
                                     kj::Own<Sandbox> sandbox, kj::Own<PeerScope> peer);

}  // namespace cordon::broker
