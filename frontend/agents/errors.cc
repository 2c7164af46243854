#include "frontend/agents/errors.h"

#include <capnp/schema.h>
#include <ctype.h>

#include "ipc/agent.pb.h"

namespace cordon::agents {
namespace {

// gRPC sends the message in a header: short, and nothing that needs escaping.
constexpr size_t kLongestMessage = 512;

std::string printable(const std::string& text) {
  std::string out;
  for (char c : text.substr(0, kLongestMessage)) {
    out += c >= 0x20 && c < 0x7f ? c : '?';
  }
  return out;
}

grpc::StatusCode toCode(rpc::Code code) {
  switch (code) {
    case rpc::Code::OK:
      break;
    case rpc::Code::INVALID_ARGUMENT:
      return grpc::StatusCode::INVALID_ARGUMENT;
    case rpc::Code::NOT_FOUND:
      return grpc::StatusCode::NOT_FOUND;
    case rpc::Code::RESOURCE_EXHAUSTED:
      return grpc::StatusCode::RESOURCE_EXHAUSTED;
    case rpc::Code::FAILED_PRECONDITION:
      return grpc::StatusCode::FAILED_PRECONDITION;
    case rpc::Code::UNAVAILABLE:
      return grpc::StatusCode::UNAVAILABLE;
    case rpc::Code::INTERNAL:
      return grpc::StatusCode::INTERNAL;
  }
  return grpc::StatusCode::INTERNAL;
}

}  // namespace

CallError invalid(std::string reason, std::string subject, std::string message, uint64_t limit) {
  return {grpc::StatusCode::INVALID_ARGUMENT,
          std::move(reason),
          std::move(subject),
          std::move(message),
          limit,
          0};
}

std::string reasonName(rpc::Reason reason) {
  auto enumerants = capnp::Schema::from<rpc::Reason>().getEnumerants();
  auto index = static_cast<kj::uint>(reason);
  if (index >= enumerants.size()) return "UNKNOWN";
  std::string out;
  for (char c : enumerants[index].getProto().getName()) {
    if (isupper(c)) out += '_';
    out += static_cast<char>(toupper(c));
  }
  return out;
}

CallError fromStatus(rpc::Status::Reader status) {
  CallError error;
  error.code = toCode(status.getCode());
  error.reason = reasonName(status.getReason());
  error.subject = status.getSubject();
  error.message = status.getDetail();
  error.limit = status.getLimit();
  error.error = status.getErrno();
  if (error.message.empty()) error.message = "the broker refused: " + error.reason;
  return error;
}

CallError fromException(const kj::Exception& exception) {
  switch (exception.getType()) {
    case kj::Exception::Type::DISCONNECTED:
      return {grpc::StatusCode::UNAVAILABLE,
              "BROKER_LOST",
              "",
              "the connection to the broker was lost during the call",
              0,
              0};
    case kj::Exception::Type::OVERLOADED:
      return {grpc::StatusCode::RESOURCE_EXHAUSTED,
              "BROKER_OVERLOADED",
              "",
              "the broker is overloaded",
              0,
              0};
    default:
      return {grpc::StatusCode::INTERNAL, "BROKER_ERROR", "", "the broker failed", 0, 0};
  }
}

CallError guestProtocol(const std::string& why) {
  return {grpc::StatusCode::INTERNAL,
          "GUEST_PROTOCOL",
          "",
          "the sandbox's agent broke the protocol: " + why,
          0,
          0};
}

CallError brokerUnavailable() {
  return {
      grpc::StatusCode::UNAVAILABLE, "BROKER_UNAVAILABLE", "", "the broker is not reachable", 0, 0};
}

grpc::Status toStatus(const CallError& error, grpc::CallbackServerContext& context) {
  if (!error.reason.empty()) context.AddTrailingMetadata("cordon-reason", error.reason);
  v1::ErrorDetail detail;
  detail.set_reason(error.reason);
  detail.set_subject(printable(error.subject));
  detail.set_message(printable(error.message));
  detail.set_limit(error.limit);
  detail.set_error_number(error.error);
  return {error.code, detail.message(), detail.SerializeAsString()};
}

}  // namespace cordon::agents
