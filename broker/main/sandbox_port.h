// The Sandbox capability of ipc/broker.capnp, for one frontend's connection.
#pragma once
#include <kj/refcount.h>

#include "broker/main/destruction.h"
#include "broker/main/execs.h"
#include "broker/main/info.h"
#include "broker/main/peer_scope.h"
#include "broker/main/sandbox.h"
#include "broker/main/services.h"

namespace cordon::broker {

// Dropping it destroys nothing.
rpc::Sandbox::Client makeSandboxPort(Services& services, Destruction& destruction,
                                     kj::Own<Sandbox> sandbox, kj::Own<PeerScope> peer);

struct BegunExec {
  Execs::Begun exec;
  kj::Maybe<rpc::Stream::Client> stream;
};
// What both calls that begin an exec do. Each limit that is wider than the
// sandbox's is refused first.
kj::OneOf<BegunExec, Failure> beginExec(Sandbox& sandbox, PeerScope& peer,
                                        rpc::ExecLimits::Reader limits, bool withStream);

// Into the results of either call that begins an exec.
template <typename Results>
void answer(Results results, kj::OneOf<BegunExec, Failure> begun) {
  if (begun.template is<Failure>()) {
    return write(results.initStatus(), begun.template get<Failure>());
  }
  auto& made = begun.template get<BegunExec>();
  results.setExec(made.exec.number);
  results.setSharedWith(made.exec.sharedWith);
  write(results.initBefore(static_cast<uint>(made.exec.before.size())), made.exec.before);
  KJ_IF_MAYBE (stream, made.stream) results.setStream(kj::mv(*stream));
  writeOk(results.initStatus());
}

}  // namespace cordon::broker
