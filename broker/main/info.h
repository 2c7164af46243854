// The broker's facts in the schema's words.
#pragma once
#include <kj/timer.h>

#include "broker/main/runtime_set.h"
#include "broker/main/sandbox.h"
#include "broker/main/workload_profile.h"
#include "broker/snapshots.h"

namespace cordon::broker {

void write(capnp::List<rpc::Counter>::Builder list, const Counters& counters);
void write(rpc::Limits::Builder out, const ResolvedLimits& limits);
void write(rpc::Receipt::Builder out, const Receipt& receipt);
void write(rpc::RuntimeInfo::Builder out, const runtimes::Runtime& runtime,
           const runtimes::Probe& probe, bool isDefault);
void write(rpc::SeccompProfile::Builder out, const WorkloadProfile& profile);
void write(rpc::SnapshotInfo::Builder out, const SnapshotRecord& snapshot);
// Counters are left out of listings: they cost a read of several files each.
void write(rpc::SandboxInfo::Builder out, Sandbox& sandbox, kj::TimePoint now, bool withCounters);

}  // namespace cordon::broker
