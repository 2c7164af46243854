// The boundary card as the broker tells it, in the API's words. A pure function.
#pragma once
#include "ipc/agent.pb.h"
#include "ipc/broker.capnp.h"

namespace cordon::agents {

void toProto(rpc::BoundaryCard::Reader card, rpc::SeccompProfile::Reader workload,
             v1::BoundaryCard& out);

}  // namespace cordon::agents
