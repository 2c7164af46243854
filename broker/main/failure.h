// What a refused or failed operation answers, and its way to the peer.
//
// Results are a status enum, a reason enum and typed fields. The text of an
// exception stays in our log: it may hold paths and host facts.
#pragma once
#include <kj/async.h>
#include <kj/one-of.h>

#include <cstdint>
#include <string>

#include "broker/main/turn_clock.h"
#include "ipc/broker.capnp.h"

namespace cordon::broker {

struct Failure {
  rpc::Code code = rpc::Code::INTERNAL;
  rpc::Reason reason = rpc::Reason::NONE;
  std::string subject;
  std::string detail;  // one sentence of ours
  uint64_t limit = 0;
  int error = 0;
};

// A failure with the code that belongs to its reason.
Failure failure(rpc::Reason reason, std::string detail, int error = 0);

void write(rpc::Status::Builder status, const Failure& failure);
void writeOk(rpc::Status::Builder status);

// Logs what was thrown and answers only that something was.
Failure fault(const char* operation, const kj::Exception& exception);

// Runs the body of an RPC: one turn of the loop on the clock, and nothing
// thrown in it, now or later, reaches the peer.
template <typename CallContext, typename Body>
kj::Promise<void> guarded(TurnClock& clock, const char* operation, CallContext& context,
                          Body&& body) {
  auto turn = clock.turn(operation);
  return kj::evalNow([&]() -> kj::Promise<void> { return body(); })
      .catch_([operation, context](kj::Exception&& exception) mutable {
        write(context.getResults().initStatus(), fault(operation, exception));
      });
}

}  // namespace cordon::broker
