#include "frontend/agents/result.h"

#include <string.h>

#include <optional>

#include "frontend/agents/card.h"

namespace cordon::agents {
namespace {

using verdict::Control;

// The two enums are the same list; the API's numbers are for ever.
static_assert(static_cast<int>(Control::kNone) == v1::NONE);
static_assert(static_cast<int>(Control::kMemory) == v1::MEMORY);
static_assert(static_cast<int>(Control::kProcesses) == v1::PROCESSES);
static_assert(static_cast<int>(Control::kHostLimit) == v1::HOST_LIMIT);
static_assert(static_cast<int>(Control::kCpuTime) == v1::CPU_TIME);
static_assert(static_cast<int>(Control::kFileSize) == v1::FILE_SIZE);
static_assert(static_cast<int>(Control::kDisk) == v1::DISK);
static_assert(static_cast<int>(Control::kWallClock) == v1::WALL_CLOCK);
static_assert(static_cast<int>(Control::kOutput) == v1::OUTPUT);
static_assert(static_cast<int>(Control::kSyscall) == v1::SYSCALL);
static_assert(static_cast<int>(Control::kCancelled) == v1::CANCELLED);
static_assert(static_cast<int>(Control::kSandboxLost) == v1::SANDBOX_LOST);
static_assert(static_cast<int>(verdict::Source::kKernel) == v1::KERNEL);
static_assert(static_cast<int>(verdict::Source::kAgent) == v1::AGENT);
static_assert(static_cast<int>(verdict::Source::kGuest) == v1::GUEST);
static_assert(static_cast<int>(verdict::Source::kFrontend) == v1::FRONTEND);

v1::Control toProto(Control control) {
  return static_cast<v1::Control>(control);
}

verdict::Kind toVerdict(rpc::CounterKind kind) {
  switch (kind) {
    case rpc::CounterKind::OOM_KILLS:
      return verdict::Kind::kOomKills;
    case rpc::CounterKind::PIDS_REFUSED:
      return verdict::Kind::kPidsRefused;
    case rpc::CounterKind::CPU_USAGE_US:
      return verdict::Kind::kCpuUsageUs;
    case rpc::CounterKind::MEMORY_PEAK_BYTES:
      return verdict::Kind::kMemoryPeakBytes;
    default:
      return verdict::Kind::kOther;
  }
}

verdict::Scope toVerdict(rpc::Scope scope) {
  switch (scope) {
    case rpc::Scope::EXEC:
      return verdict::Scope::kExec;
    case rpc::Scope::SANDBOX:
      return verdict::Scope::kSandbox;
    case rpc::Scope::HOST:
      break;
  }
  return verdict::Scope::kHost;
}

const char* stateName(rpc::SandboxState state) {
  switch (state) {
    case rpc::SandboxState::CREATING:
      return "creating";
    case rpc::SandboxState::READY:
      return "ready";
    case rpc::SandboxState::LOST:
      return "lost";
    case rpc::SandboxState::DESTROYING:
      return "destroying";
  }
  return "unknown";
}

void toProto(rpc::Limits::Reader in, v1::Limits& out) {
  auto set = [](uint64_t value, auto&& setter) {
    if (value != 0) setter(static_cast<int64_t>(value));
  };
  set(in.getMemoryBytes(), [&](int64_t v) { out.set_memory_bytes(v); });
  set(in.getPids(), [&](int64_t v) { out.set_pids(v); });
  set(in.getCpuMillis(), [&](int64_t v) { out.set_cpu_millis(v); });
  set(in.getCpuTimeMs(), [&](int64_t v) { out.set_cpu_time_ms(v); });
  set(in.getWallMs(), [&](int64_t v) { out.set_wall_ms(v); });
  set(in.getFileSizeBytes(), [&](int64_t v) { out.set_file_size_bytes(v); });
  set(in.getFiles(), [&](int64_t v) { out.set_files(v); });
  set(in.getDiskBytes(), [&](int64_t v) { out.set_disk_bytes(v); });
  set(in.getTmpBytes(), [&](int64_t v) { out.set_tmp_bytes(v); });
  set(in.getShmBytes(), [&](int64_t v) { out.set_shm_bytes(v); });
  set(in.getOutputBytes(), [&](int64_t v) { out.set_output_bytes(v); });
  set(in.getRootBytes(), [&](int64_t v) { out.set_root_bytes(v); });
}

std::optional<uint64_t> execCounter(const std::vector<CounterValue>& counters,
                                    rpc::CounterKind kind) {
  for (const auto& counter : counters) {
    if (counter.kind == kind && counter.scope == rpc::Scope::EXEC) return counter.value;
  }
  return std::nullopt;
}

// How far an exec's own counter moved; nothing where it has none.
std::optional<uint64_t> moved(const std::vector<CounterValue>& before,
                              const std::vector<CounterValue>& after, rpc::CounterKind kind) {
  auto end = execCounter(after, kind);
  if (!end) return std::nullopt;
  auto begin = execCounter(before, kind).value_or(0);
  return *end > begin ? *end - begin : 0;
}

// An exec's own limit where it has one.
uint64_t narrowed(uint64_t sandbox, uint64_t exec) {
  return exec != 0 ? exec : sandbox;
}

std::string failureText(const GuestFailure& failure) {
  std::string step = failure.step;
  std::string why = strerrordesc_np(static_cast<int>(failure.error)) != nullptr
                        ? strerrordesc_np(static_cast<int>(failure.error))
                        : "error " + std::to_string(failure.error);
  if (step == "lookup") return "the program was not found in PATH: " + why;
  if (step == "exec") return "the program could not be executed: " + why;
  if (step == "cwd") return "the working directory could not be entered: " + why;
  if (step == "user") return "the user could not be assumed: " + why;
  return "the program could not be started (" + step + "): " + why;
}

}  // namespace

std::vector<CounterValue> readCounters(capnp::List<rpc::Counter>::Reader counters) {
  std::vector<CounterValue> out;
  for (auto counter : counters) {
    out.push_back({counter.getKind(), counter.getScope(), counter.getValue(), counter.getFile()});
  }
  return out;
}

std::vector<verdict::Counter> toVerdict(const std::vector<CounterValue>& counters) {
  std::vector<verdict::Counter> out;
  for (const auto& counter : counters) {
    out.push_back({toVerdict(counter.kind), toVerdict(counter.scope), counter.value, counter.file});
  }
  return out;
}

verdict::Facts::Exit toVerdict(const GuestExit& exit) {
  verdict::Facts::Exit out;
  out.signaled = exit.signaled;
  out.code = exit.code;
  out.cpuUs = exit.userUs + exit.systemUs;
  out.stdoutTotal = exit.streams[0].total;
  out.stdoutDropped = exit.streams[0].dropped;
  out.stderrTotal = exit.streams[1].total;
  out.stderrDropped = exit.streams[1].dropped;
  out.killedByDeadline = exit.killedByDeadline;
  for (const auto& item : exit.scratch) {
    out.scratch.push_back(
        {item.path, item.totalBytes, item.freeBytes, item.totalInodes, item.freeInodes});
  }
  out.fileAtLimit = exit.fileAtLimit;
  out.leftRunning = exit.leftRunning;
  return out;
}

verdict::Limits appliedLimits(const LimitValues& sandbox, const LimitValues& exec) {
  verdict::Limits out;
  out.memoryBytes = sandbox.memoryBytes;
  out.pids = sandbox.pids;
  out.diskBytes = sandbox.diskBytes;
  out.cpuTimeMs = narrowed(sandbox.cpuTimeMs, exec.cpuTimeMs);
  out.wallMs = narrowed(sandbox.wallMs, exec.wallMs);
  out.fileSizeBytes = narrowed(sandbox.fileSizeBytes, exec.fileSizeBytes);
  out.outputBytes = narrowed(sandbox.outputBytes, exec.outputBytes);
  return out;
}

void toProto(const verdict::Verdict& in, v1::Verdict& out) {
  out.set_control(toProto(in.control));
  out.set_stopped(in.stopped);
  out.set_limit(in.limit);
  out.set_observed(in.observed);
  out.set_shared(in.shared);
  for (const auto& item : in.evidence) {
    auto& evidence = *out.add_evidence();
    evidence.set_counter(item.counter);
    evidence.set_before(item.before);
    evidence.set_after(item.after);
    evidence.set_source(static_cast<v1::Source>(item.source));
  }
  for (auto other : in.others) out.add_others(toProto(other));
  out.set_note(in.note);
}

void toProto(rpc::Receipt::Reader in, v1::Receipt& out) {
  out.set_complete(in.getComplete());
  auto copy = [](rpc::ReceiptItem::Reader from, v1::ReceiptItem& to) {
    to.set_kind(from.getKind());
    to.set_name(from.getName());
    to.set_error_number(from.getErrno());
  };
  for (auto item : in.getRemoved()) copy(item, *out.add_removed());
  for (auto item : in.getLeft()) copy(item, *out.add_left());
}

void toProto(rpc::SeccompProfile::Reader in, v1::SeccompProfile& out) {
  out.set_name(in.getName());
  out.set_calls(in.getCalls());
  out.set_known_calls(in.getKnown());
}

void toProto(rpc::SandboxInfo::Reader in, v1::SandboxInfo& out) {
  out.set_name(in.getName());
  out.set_runtime(in.getRuntime());
  out.set_image(in.getImage());
  out.set_owner_uid(in.getOwner().getUid());
  out.set_state(stateName(in.getState()));
  out.set_created_unix_ms(in.getCreatedUnixMs());
  toProto(in.getLimits(), *out.mutable_limits());
  out.set_execs_running(in.getExecsRunning());
  out.set_execs_total(in.getExecsTotal());
  for (auto counter : in.getCounters()) {
    auto& value = *out.add_counters();
    value.set_counter(counter.getFile());
    value.set_value(counter.getValue());
  }
  out.set_id_range_start(in.getIdRangeStart());
  out.set_ttl_left_ms(in.getTtlLeftMs());
  out.set_idle_ms(in.getIdleMs());
  out.set_isolation(in.getIsolation());
  if (in.getSeccomp().getName().size() > 0) toProto(in.getSeccomp(), *out.mutable_seccomp());
  if (in.hasCard()) toProto(in.getCard(), in.getSeccomp(), *out.mutable_card());
}

void toProto(rpc::SnapshotInfo::Reader in, v1::SnapshotInfo& out) {
  out.set_name(in.getName());
  out.set_kind(in.getKind());
  out.set_sandbox(in.getSandbox());
  out.set_runtime(in.getRuntime());
  out.set_image(in.getImage());
  out.set_created_unix_ms(in.getCreatedUnixMs());
  toProto(in.getLimits(), *out.mutable_limits());
  out.set_bytes(in.getBytes());
  out.set_data_bytes(in.getDataBytes());
  out.set_entries(in.getEntries());
  out.set_skipped_sockets(in.getSkippedSockets());
  out.set_skipped_devices(in.getSkippedDevices());
  out.set_without_xattrs(in.getWithoutXattrs());
}

void toProto(rpc::RuntimeInfo::Reader in, v1::RuntimeInfo& out) {
  out.set_name(in.getName());
  out.set_available(in.getAvailable());
  out.set_reason(in.getReason());
  out.set_fix(in.getFix());
  out.set_version(in.getVersion());
  for (auto note : in.getNotes()) out.add_notes(note);
  out.set_is_default(in.getIsDefault());
  out.set_is_sandbox(in.getIsSandbox());
}

void toProto(const GuestFailure& in, v1::StartFailure& out) {
  out.set_error_number(static_cast<int32_t>(in.error));
  out.set_step(in.step);
  out.set_message(failureText(in));
}

void usage(const std::vector<CounterValue>& before, const std::vector<CounterValue>& after,
           const GuestExit* exit, double wallMs, v1::Usage& out) {
  out.set_wall_ms(exit != nullptr ? static_cast<double>(exit->wallUs) / 1e3 : wallMs);
  auto user = moved(before, after, rpc::CounterKind::CPU_USER_US);
  auto system = moved(before, after, rpc::CounterKind::CPU_SYSTEM_US);
  // Some kernels keep the split in ticks only: zero there says nothing.
  if (exit != nullptr && user.value_or(0) + system.value_or(0) == 0) {
    user = exit->userUs;
    system = exit->systemUs;
  }
  out.set_cpu_user_ms(static_cast<double>(user.value_or(0)) / 1e3);
  out.set_cpu_system_ms(static_cast<double>(system.value_or(0)) / 1e3);
  if (exit != nullptr) out.set_max_rss_bytes(exit->maxRssBytes);
}

}  // namespace cordon::agents
