#include "frontend/agents/service.h"

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

// What a unary call ends with; its code is OK when there is nothing to report.
using CallResult = CallError;

CallResult allGood() {
  CallResult result;
  result.code = grpc::StatusCode::OK;
  return result;
}

}  // namespace

// `check` validates on gRPC's thread and may throw Refused; `work(port, checked)`
// runs on the loop and returns a Promise<CallResult>: allGood(), or the error
// to answer with. The response may be filled until then.
template <typename Check, typename Work>
grpc::ServerUnaryReactor* AgentsService::unary(grpc::CallbackServerContext* context, Check check,
                                               Work work) {
  auto* reactor = context->DefaultReactor();
  auto finish = [context, reactor](CallResult result) {
    if (result.code != grpc::StatusCode::OK) {
      reactor->Finish(toStatus(result, *context));
    } else {
      reactor->Finish(grpc::Status::OK);
    }
  };
  try {
    auto checked = check();
    backend_.loop.post(
        [this, finish, checked = std::move(checked), work = std::move(work)]() mutable {
          KJ_IF_MAYBE (port, backend_.port()) {
            auto& broker = *port;
            backend_.add(kj::evalNow([&] { return work(broker, std::move(checked)); })
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

grpc::ServerUnaryReactor* AgentsService::Acquire(grpc::CallbackServerContext* context,
                                                 const v1::AcquireRequest* request,
                                                 v1::AcquireResponse* response) {
  return unary(
      context, [&] { return planSandbox(request->spec()); },
      [this, context, response](rpc::AgentPort::Client& port, SandboxPlan plan) {
        auto call = port.acquireRequest();
        call.initOwner().setUid(uid_);
        fillSpec(plan, call.initSpec());
        return call.send().then([context,
                                 response](capnp::Response<rpc::AgentPort::AcquireResults>&& result)
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
          response->set_id(std::string(result.getName()) + "." + std::string(result.getToken()));
          toProto(result.getInfo(), *response->mutable_sandbox());
          return allGood();
        });
      });
}

grpc::ServerUnaryReactor* AgentsService::Release(grpc::CallbackServerContext* context,
                                                 const v1::ReleaseRequest* request,
                                                 v1::ReleaseResponse* response) {
  return unary(
      context, [&] { return parseId(request->id()); },
      [this, response](rpc::AgentPort::Client& port, SandboxId id) {
        auto attached = attach(port, uid_, id);
        auto destroyed = attached.getSandbox().destroyRequest().send();
        return attached.then([this, response, name = id.name, destroyed = kj::mv(destroyed)](
                                 capnp::Response<rpc::AgentPort::AttachResults>&& result) mutable
                             -> kj::Promise<CallResult> {
          if (result.getStatus().getCode() != rpc::Code::OK) {
            return CallResult(fromStatus(result.getStatus()));
          }
          backend_.leftRunning.forget(name);
          return destroyed.then(
              [response](capnp::Response<rpc::Sandbox::DestroyResults>&& done) -> CallResult {
                if (done.getStatus().getCode() != rpc::Code::OK) {
                  return fromStatus(done.getStatus());
                }
                toProto(done.getReceipt(), *response->mutable_receipt());
                return allGood();
              });
        });
      });
}

grpc::ServerUnaryReactor* AgentsService::List(grpc::CallbackServerContext* context,
                                              const v1::ListRequest* request,
                                              v1::ListResponse* response) {
  return unary(
      context, [&] { return planPage(*request); },
      [this, response](rpc::AgentPort::Client& port, PagePlan page) {
        auto call = port.listRequest();
        call.initOwner().setUid(uid_);
        call.setAfter(page.after);
        call.setMost(page.most);
        return call.send().then(
            [response](capnp::Response<rpc::AgentPort::ListResults>&& result) -> CallResult {
              auto sandboxes = result.getSandboxes();
              for (auto info : sandboxes) toProto(info, *response->add_sandboxes());
              if (result.getMore() && sandboxes.size() > 0) {
                response->set_next_page_token(sandboxes[sandboxes.size() - 1].getName());
              }
              return allGood();
            });
      });
}

grpc::ServerUnaryReactor* AgentsService::Inspect(grpc::CallbackServerContext* context,
                                                 const v1::InspectRequest* request,
                                                 v1::InspectResponse* response) {
  return unary(
      context, [&] { return parseId(request->id()); },
      [this, response](rpc::AgentPort::Client& port, SandboxId id) {
        auto attached = attach(port, uid_, id);
        auto inspected = attached.getSandbox().inspectRequest().send();
        return attached.then([response, inspected = kj::mv(inspected)](
                                 capnp::Response<rpc::AgentPort::AttachResults>&& result) mutable
                             -> kj::Promise<CallResult> {
          if (result.getStatus().getCode() != rpc::Code::OK) {
            return CallResult(fromStatus(result.getStatus()));
          }
          return inspected.then(
              [response](capnp::Response<rpc::Sandbox::InspectResults>&& done) -> CallResult {
                if (done.getStatus().getCode() != rpc::Code::OK) {
                  return fromStatus(done.getStatus());
                }
                toProto(done.getInfo(), *response->mutable_sandbox());
                return allGood();
              });
        });
      });
}

grpc::ServerUnaryReactor* AgentsService::Runtimes(grpc::CallbackServerContext* context,
                                                  const v1::RuntimesRequest*,
                                                  v1::RuntimesResponse* response) {
  response->set_one_trust_zone(oneTrustZone_);
  return unary(
      context, [] { return 0; },
      [response](rpc::AgentPort::Client& port, int) {
        return port.runtimesRequest().send().then(
            [response](capnp::Response<rpc::AgentPort::RuntimesResults>&& result) -> CallResult {
              for (auto info : result.getRuntimes()) toProto(info, *response->add_runtimes());
              for (auto profile : result.getProfiles()) {
                toProto(profile, *response->add_seccomp_profiles());
              }
              return allGood();
            });
      });
}

}  // namespace cordon::agents
