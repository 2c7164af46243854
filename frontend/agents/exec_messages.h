// Messages of a call, ready to be sent to either side.
#pragma once
#include <capnp/message.h>
#include <grpcpp/support/byte_buffer.h>
#include <kj/array.h>
#include <kj/function.h>

#include "ipc/agent.pb.h"
#include "ipc/guest.capnp.h"

namespace cordon::agents {

// To vm-agent: one frame (ipc/framing.h).
kj::Array<capnp::word> hostFrame(kj::FunctionParam<void(guest::HostMessage::Builder)> fill);
// To the client.
grpc::ByteBuffer serialize(const v1::ExecResponse& response);

}  // namespace cordon::agents
