#include "broker/main/info.h"

#include <string.h>

namespace cordon::broker {

namespace {
void writeItems(capnp::List<rpc::ReceiptItem>::Builder list, const std::vector<LeftOver>& items) {
  for (uint i = 0; i < items.size(); ++i) {
    list[i].setKind(items[i].kind);
    list[i].setName(items[i].name);
    list[i].setErrno(items[i].error);
  }
}
}  // namespace

void write(capnp::List<rpc::Counter>::Builder list, const Counters& counters) {
  for (uint i = 0; i < counters.size(); ++i) {
    list[i].setKind(counters[i].kind);
    list[i].setScope(counters[i].scope);
    list[i].setValue(counters[i].value);
    list[i].setFile(counters[i].file);
  }
}

void write(rpc::Limits::Builder out, const ResolvedLimits& limits) {
  out.setMemoryBytes(limits.memoryBytes);
  out.setPids(limits.pids);
  out.setCpuMillis(limits.cpuMillis);
  out.setCpuTimeMs(limits.cpuTimeMs);
  out.setWallMs(limits.wallMs);
  out.setFileSizeBytes(limits.fileSizeBytes);
  out.setFiles(limits.files);
  out.setDiskBytes(limits.diskBytes);
  out.setTmpBytes(limits.tmpBytes);
  out.setRootBytes(limits.rootBytes);
  out.setShmBytes(limits.shmBytes);
  out.setOutputBytes(limits.outputBytes);
}

void write(rpc::Receipt::Builder out, const Receipt& receipt) {
  out.setComplete(receipt.complete);
  writeItems(out.initRemoved(static_cast<uint>(receipt.removed.size())), receipt.removed);
  writeItems(out.initLeft(static_cast<uint>(receipt.left.size())), receipt.left);
}

void write(rpc::RuntimeInfo::Builder out, const runtimes::Runtime& runtime,
           const runtimes::Probe& probe, bool isDefault) {
  out.setName(runtime.name());
  out.setAvailable(probe.available);
  out.setReason(probe.reason);
  out.setFix(probe.fix);
  out.setVersion(probe.version);
  auto notes = out.initNotes(static_cast<uint>(probe.notes.size()));
  for (uint i = 0; i < probe.notes.size(); ++i) notes.set(i, probe.notes[i]);
  out.setIsDefault(isDefault);
  out.setIsSandbox(runtime.isSandbox());
}

void write(rpc::SeccompProfile::Builder out, const WorkloadProfile& profile) {
  out.setName(profile.name);
  out.setCalls(profile.calls);
  out.setKnown(profile.known);
}

void write(rpc::SnapshotInfo::Builder out, const SnapshotRecord& snapshot) {
  out.setName(snapshot.name);
  out.initOwner().setUid(snapshot.ownerUid);
  out.setKind("filesystem");
  out.setSandbox(snapshot.sandbox);
  out.setRuntime(snapshot.runtime);
  out.setImage(snapshot.image);
  out.setCreatedUnixMs(snapshot.createdUnixMs);
  write(out.initLimits(), snapshot.limits);
  out.setBytes(snapshot.archiveBytes);
  out.setDataBytes(snapshot.dataBytes);
  out.setEntries(snapshot.entries);
  out.setSkippedSockets(snapshot.skippedSockets);
  out.setSkippedDevices(snapshot.skippedDevices);
  out.setWithoutXattrs(snapshot.withoutXattrs);
}

void write(rpc::SandboxInfo::Builder out, Sandbox& sandbox, kj::TimePoint now, bool withCounters) {
  auto& entry = sandbox.entry;
  out.setName(entry.name);
  out.setRuntime(entry.runtime);
  out.setImage(entry.image);
  out.initOwner().setUid(entry.ownerUid);
  out.setState(entry.state);
  out.setCreatedUnixMs(entry.createdUnixMs);
  write(out.initLimits(), entry.limits);
  KJ_IF_MAYBE (execs, sandbox.execs) {
    out.setExecsRunning((*execs)->running());
    out.setExecsTotal((*execs)->total());
  }
  if (withCounters) {
    KJ_IF_MAYBE (cgroups, sandbox.cgroups) {
      auto counters = (*cgroups)->read();
      write(out.initCounters(static_cast<uint>(counters.size())), counters);
    }
  }
  out.setIdRangeStart(entry.idFirst);
  auto end = sandbox.created + sandbox.spec.ttl;
  auto left = end > now ? end - now : 0 * kj::SECONDS;
  out.setTtlLeftMs(static_cast<uint64_t>(left / kj::MILLISECONDS));
  out.setIdleMs(static_cast<uint64_t>(sandbox.spec.idle / kj::MILLISECONDS));
  std::string isolation = sandbox.runtime == nullptr ? "" : sandbox.runtime->isolation();
  if (sandbox.profile != nullptr) {
    auto& profile = *sandbox.profile;
    write(out.initSeccomp(), profile);
    if (!isolation.empty()) isolation += ", ";
    isolation += "seccomp " + profile.name + " (" + std::to_string(profile.calls) + " of " +
                 std::to_string(profile.known) + " calls)";
  }
  out.setIsolation(isolation);
}

}  // namespace cordon::broker
