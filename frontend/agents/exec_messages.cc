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

using Traits = grpc::SerializationTraits<google::protobuf::MessageLite>;

grpc::ByteBuffer serialize(const google::protobuf::MessageLite& response) {
  grpc::ByteBuffer out;
  bool own;
  auto status = Traits::Serialize(response, &out, &own);
  KJ_ASSERT(status.ok(), "a response that cannot be serialized");
  return out;
}

bool parse(grpc::ByteBuffer& bytes, google::protobuf::MessageLite& request) {
  return Traits::Deserialize(&bytes, &request).ok();
}

}  // namespace cordon::agents
