// A service for tests, in the test's own process.
#pragma once
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <string>

#include "ipc/agent.grpc.pb.h"

namespace cordon::testing_service {

using Stream = grpc::ServerReaderWriter<v1::ExecResponse, v1::ExecRequest>;

// Answers calls as each test says.
class FakeService final : public v1::Agents::Service {
 public:
  std::function<grpc::Status(Stream&, grpc::ServerContext&)> converse;
  std::function<grpc::Status(v1::AcquireResponse&)> acquire;
  std::atomic<bool> cancelled = false;

  grpc::Status Acquire(grpc::ServerContext*, const v1::AcquireRequest*,
                       v1::AcquireResponse* response) override {
    return acquire(*response);
  }
  grpc::Status Run(grpc::ServerContext* context, Stream* stream) override {
    grpc::Status status = converse(*stream, *context);
    cancelled = cancelled || context->IsCancelled();
    return status;
  }
  grpc::Status Exec(grpc::ServerContext* context, Stream* stream) override {
    return Run(context, stream);
  }
};

inline void sendOutput(Stream& stream, v1::OutputStream which, uint64_t offset,
                       const std::string& bytes) {
  v1::ExecResponse response;
  response.mutable_output()->set_stream(which);
  response.mutable_output()->set_offset(offset);
  response.mutable_output()->set_data(bytes);
  stream.Write(response);
}

inline void sendResult(Stream& stream, int code) {
  v1::ExecResponse response;
  response.mutable_result()->set_exit_code(code);
  stream.Write(response);
}

// Waits until the client is gone.
inline grpc::Status untilCancelled(Stream& stream, grpc::ServerContext& context) {
  v1::ExecRequest request;
  while (stream.Read(&request)) {
  }
  return context.IsCancelled() ? grpc::Status::CANCELLED : grpc::Status::OK;
}

}  // namespace cordon::testing_service
