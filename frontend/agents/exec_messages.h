// Messages of a call, as they are sent to either side.
#pragma once
#include <capnp/message.h>
#include <google/protobuf/message_lite.h>
#include <grpcpp/support/byte_buffer.h>
#include <kj/array.h>
#include <kj/function.h>

#include "ipc/guest.capnp.h"

namespace cordon::agents {

// To vm-agent: one frame (ipc/framing.h).
kj::Array<capnp::word> hostFrame(kj::FunctionParam<void(guest::HostMessage::Builder)> fill);
// To the client.
grpc::ByteBuffer serialize(const google::protobuf::MessageLite& response);
// From the client; `bytes` is empty after it. False: it is no such message.
bool parse(grpc::ByteBuffer& bytes, google::protobuf::MessageLite& request);

}  // namespace cordon::agents
