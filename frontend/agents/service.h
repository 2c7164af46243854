// The gRPC service of one client uid. Every client uid has a server object and
// one of these of its own, so that no call can be taken for another uid's.
#pragma once
#include <cstdint>

#include "frontend/agents/backend.h"
#include "frontend/agents/errors.h"
#include "frontend/agents/exec_calls.h"
#include "ipc/agent.grpc.pb.h"

namespace cordon::agents {

// Exec and Run are raw: their output goes out without being copied into a
// message object (OutputMessage).
using AgentsBase = v1::Agents::WithRawCallbackMethod_Exec<v1::Agents::WithRawCallbackMethod_Run<
    v1::Agents::WithCallbackMethod_Acquire<v1::Agents::WithCallbackMethod_Release<
        v1::Agents::WithCallbackMethod_List<v1::Agents::WithCallbackMethod_Inspect<
            v1::Agents::WithCallbackMethod_Runtimes<v1::Agents::Service>>>>>>>;

class AgentsService final : public AgentsBase {
 public:
  // `uid`: whose connections this service gets, from SO_PEERCRED.
  AgentsService(Backend& backend, ExecCalls& calls, uint32_t uid, bool oneTrustZone)
      : backend_(backend), calls_(calls), uid_(uid), oneTrustZone_(oneTrustZone) {}

  using Stream = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;
  Stream* Exec(grpc::CallbackServerContext* context) override;
  Stream* Run(grpc::CallbackServerContext* context) override;

  grpc::ServerUnaryReactor* Acquire(grpc::CallbackServerContext* context,
                                    const v1::AcquireRequest* request,
                                    v1::AcquireResponse* response) override;
  grpc::ServerUnaryReactor* Release(grpc::CallbackServerContext* context,
                                    const v1::ReleaseRequest* request,
                                    v1::ReleaseResponse* response) override;
  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* context,
                                 const v1::ListRequest* request,
                                 v1::ListResponse* response) override;
  grpc::ServerUnaryReactor* Inspect(grpc::CallbackServerContext* context,
                                    const v1::InspectRequest* request,
                                    v1::InspectResponse* response) override;
  grpc::ServerUnaryReactor* Runtimes(grpc::CallbackServerContext* context,
                                     const v1::RuntimesRequest* request,
                                     v1::RuntimesResponse* response) override;

 private:
  // Starts a unary call's work on the loop thread; see service.cc.
  template <typename Check, typename Work>
  grpc::ServerUnaryReactor* unary(grpc::CallbackServerContext* context, Check check, Work work);

  Backend& backend_;
  ExecCalls& calls_;
  const uint32_t uid_;
  const bool oneTrustZone_;
};

}  // namespace cordon::agents
