// The gRPC service of one client uid. Every client uid has a server object and
// one of these of its own, so that no call can be taken for another uid's.
#pragma once
#include <cstdint>

#include "frontend/agents/backend.h"
#include "frontend/agents/errors.h"
#include "frontend/agents/exec_calls.h"
#include "ipc/agent.grpc.pb.h"

namespace cordon::agents {

// All raw: the output of Exec and Run goes out without being copied into a
// message object (OutputMessage), and gRPC would answer a request that can't be
// parsed with UNIMPLEMENTED and no reason.
using AgentsBase = v1::Agents::WithRawCallbackMethod_Exec<v1::Agents::WithRawCallbackMethod_Run<
    v1::Agents::WithRawCallbackMethod_Acquire<v1::Agents::WithRawCallbackMethod_Release<
        v1::Agents::WithRawCallbackMethod_List<v1::Agents::WithRawCallbackMethod_Inspect<
            v1::Agents::WithRawCallbackMethod_Runtimes<v1::Agents::WithRawCallbackMethod_Snapshot<
                v1::Agents::WithRawCallbackMethod_ListSnapshots<
                    v1::Agents::WithRawCallbackMethod_DeleteSnapshot<v1::Agents::Service>>>>>>>>>>;

class AgentsService final : public AgentsBase {
 public:
  // `uid`: whose connections this service gets, from SO_PEERCRED.
  AgentsService(Backend& backend, ExecCalls& calls, uint32_t uid, bool oneTrustZone)
      : backend_(backend), calls_(calls), uid_(uid), oneTrustZone_(oneTrustZone) {}

  using Stream = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;
  Stream* Exec(grpc::CallbackServerContext* context) override;
  Stream* Run(grpc::CallbackServerContext* context) override;

  using Unary = grpc::ServerUnaryReactor;
  Unary* Acquire(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                 grpc::ByteBuffer* response) override;
  Unary* Release(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                 grpc::ByteBuffer* response) override;
  Unary* List(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
              grpc::ByteBuffer* response) override;
  Unary* Inspect(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                 grpc::ByteBuffer* response) override;
  Unary* Runtimes(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                  grpc::ByteBuffer* response) override;
  Unary* Snapshot(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                  grpc::ByteBuffer* response) override;
  Unary* ListSnapshots(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                       grpc::ByteBuffer* response) override;
  Unary* DeleteSnapshot(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                        grpc::ByteBuffer* response) override;

 private:
  // Starts a unary call's work on the loop thread; see service.cc.
  template <typename Request, typename Response, typename Check, typename Work>
  Unary* unary(grpc::CallbackServerContext* context, const grpc::ByteBuffer* in,
               grpc::ByteBuffer* out, Check check, Work work);

  Backend& backend_;
  ExecCalls& calls_;
  const uint32_t uid_;
  const bool oneTrustZone_;
};

}  // namespace cordon::agents
