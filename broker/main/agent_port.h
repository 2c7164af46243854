// The AgentPort of ipc/broker.capnp: what the frontend for agents may ask.
#pragma once
#include "broker/main/creation.h"
#include "broker/main/destruction.h"
#include "broker/main/peer_scope.h"
#include "broker/main/registry.h"
#include "broker/main/services.h"

namespace cordon::broker {

// For one connection. All references outlive it.
rpc::AgentPort::Client makeAgentPort(Services& services, Registry& registry, Creation& creation,
                                     Destruction& destruction, kj::Own<PeerScope> peer);

}  // namespace cordon::broker
