// From what was counted to the messages of the API. Pure functions.
#pragma once
#include <capnp/list.h>

#include "frontend/agents/guest_stream.h"
#include "frontend/agents/validate.h"
#include "frontend/verdict/verdict.h"
#include "ipc/agent.pb.h"
#include "ipc/broker.capnp.h"

namespace cordon::agents {

// A counter as an exec keeps it between begin and end.
struct CounterValue {
  rpc::CounterKind kind;
  rpc::Scope scope;
  uint64_t value;
  std::string file;
};
std::vector<CounterValue> readCounters(capnp::List<rpc::Counter>::Reader counters);

std::vector<verdict::Counter> toVerdict(const std::vector<CounterValue>& counters);
verdict::Facts::Exit toVerdict(const GuestExit& exit);
// The sandbox's limits, narrowed by the exec's.
verdict::Limits appliedLimits(const LimitValues& sandbox, const LimitValues& exec);

void toProto(const verdict::Verdict& verdict, v1::Verdict& out);
void toProto(rpc::Receipt::Reader receipt, v1::Receipt& out);
void toProto(rpc::SandboxInfo::Reader info, v1::SandboxInfo& out);
void toProto(rpc::RuntimeInfo::Reader info, v1::RuntimeInfo& out);
void toProto(rpc::SnapshotInfo::Reader info, v1::SnapshotInfo& out);
void toProto(rpc::SeccompProfile::Reader profile, v1::SeccompProfile& out);
void toProto(const GuestFailure& failure, v1::StartFailure& out);
// CPU time from the exec's own kernel counters where there are any, else as the
// agent told it.
void usage(const std::vector<CounterValue>& before, const std::vector<CounterValue>& after,
           const GuestExit* exit, double wallMs, v1::Usage& out);

}  // namespace cordon::agents
