#include "frontend/agents/exec_messages.h"

#include <grpcpp/impl/codegen/proto_utils.h>
#include <kj/debug.h>

#include "ipc/framing.h"

namespace cordon::agents {

kj::Array<capnp::word> hostFrame(kj::FunctionParam<void(guest::HostMessage::Builder)> fill) {
  capnp::MallocMessageBuilder message;
  fill(message.initRoot<guest::HostMessage>());
  return ipc::frameMessage(message);
}

grpc::ByteBuffer serialize(const v1::ExecResponse& response) {
  grpc::ByteBuffer out;
  bool own;
  auto status = grpc::SerializationTraits<v1::ExecResponse>::Serialize(response, &out, &own);
  KJ_ASSERT(status.ok(), "a response that cannot be serialized");
  return out;
}

}  // namespace cordon::agents
