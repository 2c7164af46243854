#include "frontend/agents/service.h"

#include <memory>

#include "frontend/agents/exec_messages.h"
#include "frontend/agents/exec_reactor.h"
#include "frontend/agents/result.h"
#include "frontend/agents/validate.h"

namespace cordon::agents {
namespace {

capnp::RemotePromise<rpc::AgentPort::AttachResults> attach(rpc::AgentPort::Client& port,
                                                           uint32_t uid, const SandboxId& id) {
  auto request = port.attachRequest();
  request.initOwner().setUid(uid);
  request.setName(id.name);
  request.setToken(id.token);
  return request.send();
}

capnp::RemotePromise<rpc::AgentPort::DeleteSnapshotResults> deleteSnapshot(
    rpc::AgentPort::Client& port, uint32_t uid, const SandboxId& id) {
  auto request = port.deleteSnapshotRequest();
  request.initOwner().setUid(uid);
  request.setName(id.name);
  request.setToken(id.token);
  return request.send();
}

// What a unary call ends with; its code is OK when there is nothing to report.
using CallResult = CallError;

CallResult allGood() {
  CallResult result;
  result.code = grpc::StatusCode::OK;
  return result;
}

}  // namespace

// `check(request)` validates on gRPC's thread and may throw Refused;
// `work(port, checked, response)` runs on the loop and returns a
// Promise<CallResult>: allGood(), or the error to answer with. The response may
// be filled until then.
template <typename Request, typename Response, typename Check, typename Work>
grpc::ServerUnaryReactor* AgentsService::unary(grpc::CallbackServerContext* context,
                                               const grpc::ByteBuffer* in, grpc::ByteBuffer* out,
                                               Check check, Work work) {
  auto* reactor = context->DefaultReactor();
  auto response = std::make_shared<Response>();
  auto finish = [context, reactor, response, out](CallResult result) {
    if (result.code != grpc::StatusCode::OK) return reactor->Finish(toStatus(result, *context));
    *out = serialize(*response);
    reactor->Finish(grpc::Status::OK);
  };
  try {
    Request request;
    grpc::ByteBuffer bytes(*in);
    if (!parse(bytes, request)) {
      throw Refused{invalid("MALFORMED_REQUEST", "", "the request is none of this method's")};
    }
    auto checked = check(request);
    backend_.loop.post(
        [this, finish, response, checked = std::move(checked), work = std::move(work)]() mutable {
          KJ_IF_MAYBE (port, backend_.port()) {
            auto& broker = *port;
            backend_.add(kj::evalNow([&] { return work(broker, std::move(checked), *response); })
                             // A copy: then() keeps an lvalue by reference.
                             .then(kj::cp(finish), [this, finish](kj::Exception&& exception) {
                               backend_.log->error("a call on the broker failed: {}",
                                                   exception.getDescription().cStr());
                               finish(fromException(exception));
                             }));
          } else {
            finish(brokerUnavailable());
          }
        });
  } catch (const Refused& refused) {
    finish(refused.error);
  }
  return reactor;
}

AgentsService::Stream* AgentsService::Exec(grpc::CallbackServerContext* context) {
  return new ExecReactor(calls_, *context, uid_, false);
}

AgentsService::Stream* AgentsService::Run(grpc::CallbackServerContext* context) {
  return new ExecReactor(calls_, *context, uid_, true);
}

AgentsService::Unary* AgentsService::Acquire(grpc::CallbackServerContext* context,
                                             const grpc::ByteBuffer* request,
                                             grpc::ByteBuffer* response) {
  return unary<v1::AcquireRequest, v1::AcquireResponse>(
      context, request, response,
      [](const v1::AcquireRequest& asked) { return planSandbox(asked.spec()); },
      [this, context](rpc::AgentPort::Client& port, SandboxPlan plan, v1::AcquireResponse& answer) {
        auto call = port.acquireRequest();
        call.initOwner().setUid(uid_);
        fillSpec(plan, call.initSpec());
        return call.send().then(
            [context, &answer](capnp::Response<rpc::AgentPort::AcquireResults>&& result)
                -> kj::Promise<CallResult> {
              if (result.getStatus().getCode() != rpc::Code::OK) {
                return CallResult(fromStatus(result.getStatus()));
              }
              if (context->IsCancelled()) {
                // Nobody will ever hear its token.
                return result.getSandbox().destroyRequest().send().then(
                    [](capnp::Response<rpc::Sandbox::DestroyResults>&&) -> CallResult {
                      return CallError{grpc::StatusCode::CANCELLED, "CANCELLED", "",
                                       "the call was cancelled",    0,           0};
                    });
              }
              answer.set_id(std::string(result.getName()) + "." + std::string(result.getToken()));
              toProto(result.getInfo(), *answer.mutable_sandbox());
              return allGood();
            });
      });
}

AgentsService::Unary* AgentsService::Release(grpc::CallbackServerContext* context,
                                             const grpc::ByteBuffer* request,
                                             grpc::ByteBuffer* response) {
  return unary<v1::ReleaseRequest, v1::ReleaseResponse>(
      context, request, response,
      [](const v1::ReleaseRequest& asked) { return parseId(asked.id()); },
      [this](rpc::AgentPort::Client& port, SandboxId id, v1::ReleaseResponse& answer) {
        auto attached = attach(port, uid_, id);
        auto destroyed = attached.getSandbox().destroyRequest().send();
        return attached.then([this, &answer, name = id.name, destroyed = kj::mv(destroyed)](
                                 capnp::Response<rpc::AgentPort::AttachResults>&& result) mutable
                             -> kj::Promise<CallResult> {
          if (result.getStatus().getCode() != rpc::Code::OK) {
            return CallResult(fromStatus(result.getStatus()));
          }
          backend_.leftRunning.forget(name);
          return destroyed.then(
              [&answer](capnp::Response<rpc::Sandbox::DestroyResults>&& done) -> CallResult {
                if (done.getStatus().getCode() != rpc::Code::OK) {
                  return fromStatus(done.getStatus());
                }
                toProto(done.getReceipt(), *answer.mutable_receipt());
                return allGood();
              });
        });
      });
}

AgentsService::Unary* AgentsService::List(grpc::CallbackServerContext* context,
                                          const grpc::ByteBuffer* request,
                                          grpc::ByteBuffer* response) {
  return unary<v1::ListRequest, v1::ListResponse>(
      context, request, response, [](const v1::ListRequest& asked) { return planPage(asked); },
      [this](rpc::AgentPort::Client& port, PagePlan page, v1::ListResponse& answer) {
        auto call = port.listRequest();
        call.initOwner().setUid(uid_);
        call.setAfter(page.after);
        call.setMost(page.most);
        return call.send().then(
            [&answer](capnp::Response<rpc::AgentPort::ListResults>&& result) -> CallResult {
              auto sandboxes = result.getSandboxes();
              for (auto info : sandboxes) toProto(info, *answer.add_sandboxes());
              if (result.getMore() && sandboxes.size() > 0) {
                answer.set_next_page_token(sandboxes[sandboxes.size() - 1].getName());
              }
              return allGood();
            });
      });
}

AgentsService::Unary* AgentsService::Inspect(grpc::CallbackServerContext* context,
                                             const grpc::ByteBuffer* request,
                                             grpc::ByteBuffer* response) {
  return unary<v1::InspectRequest, v1::InspectResponse>(
      context, request, response,
      [](const v1::InspectRequest& asked) { return parseId(asked.id()); },
      [this](rpc::AgentPort::Client& port, SandboxId id, v1::InspectResponse& answer) {
        auto attached = attach(port, uid_, id);
        auto inspected = attached.getSandbox().inspectRequest().send();
        return attached.then([&answer, inspected = kj::mv(inspected)](
                                 capnp::Response<rpc::AgentPort::AttachResults>&& result) mutable
                             -> kj::Promise<CallResult> {
          if (result.getStatus().getCode() != rpc::Code::OK) {
            return CallResult(fromStatus(result.getStatus()));
          }
          return inspected.then(
              [&answer](capnp::Response<rpc::Sandbox::InspectResults>&& done) -> CallResult {
                if (done.getStatus().getCode() != rpc::Code::OK) {
                  return fromStatus(done.getStatus());
                }
                toProto(done.getInfo(), *answer.mutable_sandbox());
                return allGood();
              });
        });
      });
}

AgentsService::Unary* AgentsService::Runtimes(grpc::CallbackServerContext* context,
                                              const grpc::ByteBuffer* request,
                                              grpc::ByteBuffer* response) {
  return unary<v1::RuntimesRequest, v1::RuntimesResponse>(
      context, request, response, [](const v1::RuntimesRequest&) { return 0; },
      [this](rpc::AgentPort::Client& port, int, v1::RuntimesResponse& answer) {
        answer.set_one_trust_zone(oneTrustZone_);
        return port.runtimesRequest().send().then(
            [&answer](capnp::Response<rpc::AgentPort::RuntimesResults>&& result) -> CallResult {
              for (auto info : result.getRuntimes()) toProto(info, *answer.add_runtimes());
              for (auto profile : result.getProfiles()) {
                toProto(profile, *answer.add_seccomp_profiles());
              }
              return allGood();
            });
      });
}

AgentsService::Unary* AgentsService::Snapshot(grpc::CallbackServerContext* context,
                                              const grpc::ByteBuffer* request,
                                              grpc::ByteBuffer* response) {
  return unary<v1::SnapshotRequest, v1::SnapshotResponse>(
      context, request, response,
      [](const v1::SnapshotRequest& asked) { return parseId(asked.id()); },
      [this, context](rpc::AgentPort::Client& port, SandboxId id, v1::SnapshotResponse& answer) {
        auto attached = attach(port, uid_, id);
        auto taken = attached.getSandbox().snapshotRequest().send();
        return attached.then([this, context, &answer, port, taken = kj::mv(taken)](
                                 capnp::Response<rpc::AgentPort::AttachResults>&& result) mutable
                             -> kj::Promise<CallResult> {
          if (result.getStatus().getCode() != rpc::Code::OK) {
            return CallResult(fromStatus(result.getStatus()));
          }
          return taken.then([this, context, &answer,
                             port](capnp::Response<rpc::Sandbox::SnapshotResults>&& done) mutable
                            -> kj::Promise<CallResult> {
            if (done.getStatus().getCode() != rpc::Code::OK) {
              return CallResult(fromStatus(done.getStatus()));
            }
            if (context->IsCancelled()) {
              // Nobody will ever hear its token.
              SandboxId made{done.getName(), done.getToken()};
              return deleteSnapshot(port, uid_, made)
                  .then([](capnp::Response<rpc::AgentPort::DeleteSnapshotResults>&&) -> CallResult {
                    return CallError{grpc::StatusCode::CANCELLED, "CANCELLED", "",
                                     "the call was cancelled",    0,           0};
                  });
            }
            answer.set_id(std::string(done.getName()) + "." + std::string(done.getToken()));
            toProto(done.getInfo(), *answer.mutable_snapshot());
            return allGood();
          });
        });
      });
}

AgentsService::Unary* AgentsService::ListSnapshots(grpc::CallbackServerContext* context,
                                                   const grpc::ByteBuffer* request,
                                                   grpc::ByteBuffer* response) {
  return unary<v1::ListSnapshotsRequest, v1::ListSnapshotsResponse>(
      context, request, response, [](const v1::ListSnapshotsRequest&) { return 0; },
      [this](rpc::AgentPort::Client& port, int, v1::ListSnapshotsResponse& answer) {
        auto call = port.snapshotsRequest();
        call.initOwner().setUid(uid_);
        return call.send().then(
            [&answer](capnp::Response<rpc::AgentPort::SnapshotsResults>&& result) -> CallResult {
              for (auto info : result.getSnapshots()) toProto(info, *answer.add_snapshots());
              return allGood();
            });
      });
}

AgentsService::Unary* AgentsService::DeleteSnapshot(grpc::CallbackServerContext* context,
                                                    const grpc::ByteBuffer* request,
                                                    grpc::ByteBuffer* response) {
  return unary<v1::DeleteSnapshotRequest, v1::DeleteSnapshotResponse>(
      context, request, response,
      [](const v1::DeleteSnapshotRequest& asked) { return parseSnapshotId(asked.id()); },
      [this](rpc::AgentPort::Client& port, SandboxId id, v1::DeleteSnapshotResponse&) {
        return deleteSnapshot(port, uid_, id)
            .then([](capnp::Response<rpc::AgentPort::DeleteSnapshotResults>&& done) -> CallResult {
              if (done.getStatus().getCode() != rpc::Code::OK) return fromStatus(done.getStatus());
              return allGood();
            });
      });
}

}  // namespace cordon::agents
