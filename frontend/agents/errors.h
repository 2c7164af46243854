// Errors of the API: a gRPC code, a machine-readable reason and fields, and how
// they reach the client (trailing metadata `cordon-reason`, ErrorDetail).
// docs/api.md lists the reasons.
#pragma once
#include <grpcpp/server_context.h>
#include <grpcpp/support/status.h>
#include <kj/exception.h>

#include <cstdint>
#include <string>

#include "ipc/broker.capnp.h"

namespace cordon::agents {

struct CallError {
  grpc::StatusCode code = grpc::StatusCode::INTERNAL;
  std::string reason;   // "LIMIT_ZERO"
  std::string subject;  // field, as in broker.capnp: "memoryBytes"; "" = none
  std::string message;  // one sentence, safe to show
  uint64_t limit = 0;   // the bound that was exceeded; 0 = none
  int32_t error = 0;    // errno; 0 = none
};

CallError invalid(std::string reason, std::string subject, std::string message, uint64_t limit = 0);

// The broker's refusal. `status` must not be ok.
CallError fromStatus(rpc::Status::Reader status);

// A call on the broker that threw. The exception's text is for our log only:
// it never reaches a client.
CallError fromException(const kj::Exception& exception);

// The sandbox's agent broke the protocol.
CallError guestProtocol(const std::string& why);

// There is no connection to the broker.
CallError brokerUnavailable();

// "limitZero" → "LIMIT_ZERO".
std::string reasonName(rpc::Reason reason);

// Adds the trailing metadata to `context` and returns the status to finish with.
grpc::Status toStatus(const CallError& error, grpc::CallbackServerContext& context);

}  // namespace cordon::agents
