#include "escape_suite/client_grpc.h"

#include <chrono>
#include <optional>
#include <stop_token>

#include "escape_suite/runner.h"
#include "frontend/cli/client.h"
#include "frontend/cli/interrupts.h"
#include "frontend/cli/render.h"

namespace cordon::escape {
namespace {

namespace v1 = cordon::v1;

// A sandbox that the runner could not release (it was killed) ends by itself.
constexpr int64_t kTimeToLiveMs = 5 * 60 * 1000;
// Past the exec's own deadline: then the service is taken for stuck.
constexpr std::chrono::milliseconds kPatience{30'000};

// What an exec may narrow; the rest belongs to the sandbox.
void setExecLimits(v1::Limits& to, const RowLimits& from) {
  if (from.cpuTimeMs != 0) to.set_cpu_time_ms(static_cast<int64_t>(from.cpuTimeMs));
  if (from.wallMs != 0) to.set_wall_ms(static_cast<int64_t>(from.wallMs));
  if (from.fileSizeBytes != 0) to.set_file_size_bytes(static_cast<int64_t>(from.fileSizeBytes));
  if (from.files != 0) to.set_files(static_cast<int64_t>(from.files));
  if (from.outputBytes != 0) to.set_output_bytes(static_cast<int64_t>(from.outputBytes));
}

void setSandboxLimits(v1::Limits& to, const RowLimits& from) {
  setExecLimits(to, from);
  if (from.memoryBytes != 0) to.set_memory_bytes(static_cast<int64_t>(from.memoryBytes));
  if (from.pids != 0) to.set_pids(static_cast<int64_t>(from.pids));
  if (from.diskBytes != 0) to.set_disk_bytes(static_cast<int64_t>(from.diskBytes));
  if (from.tmpBytes != 0) to.set_tmp_bytes(static_cast<int64_t>(from.tmpBytes));
  if (from.shmBytes != 0) to.set_shm_bytes(static_cast<int64_t>(from.shmBytes));
}

ExecReport reportOf(const v1::Result& result) {
  ExecReport report;
  report.finished = true;
  switch (result.status_case()) {
    case v1::Result::kExitCode:
      report.started = true;
      report.code = result.exit_code();
      break;
    case v1::Result::kSignal:
      report.started = true;
      report.signaled = true;
      report.code = result.signal();
      break;
    case v1::Result::kNotStarted:
      report.startErrno = result.not_started().error_number();
      break;
    case v1::Result::STATUS_NOT_SET:
      // Its init died before there was a status; the verdict says so.
      report.started = true;
      report.code = -1;
      break;
  }
  verdict::Verdict verdict = cli::fromMessage(result.verdict());
  report.control = name(verdict.control);
  report.stopped = verdict.stopped;
  for (verdict::Control other : verdict.others) report.others.emplace_back(name(other));
  for (const verdict::Evidence& evidence : verdict.evidence) {
    report.evidence.push_back(
        Counter{evidence.counter, evidence.before, evidence.after, name(evidence.source)});
  }
  report.wallMs = result.usage().wall_ms();
  report.cpuMs = result.usage().cpu_user_ms() + result.usage().cpu_system_ms();
  report.stdoutTotal = result.stdout().total();
  report.stdoutDropped = result.stdout().dropped();
  report.leftRunning = result.left_running();
  return report;
}

class GrpcClient : public SandboxClient {
 public:
  explicit GrpcClient(const std::string& address)
      : client(address.empty() ? client::agentsAddress() : address) {}

  Acquired acquire(const std::string& runtime, const std::string& image,
                   const RowLimits& limits) override {
    return guarded([&] {
      v1::SandboxSpec spec;
      spec.set_runtime(runtime);
      spec.set_image(image);
      spec.set_ttl_ms(kTimeToLiveMs);
      setSandboxLimits(*spec.mutable_limits(), limits);
      v1::AcquireResponse response = client.acquire(spec);
      Acquired acquired;
      acquired.id = response.id();
      acquired.runtime = response.sandbox().runtime();
      acquired.isSandbox = isSandbox(acquired.runtime);
      return acquired;
    });
  }

  ExecAnswer exec(const std::string& id, const ExecRequest& request) override {
    v1::ExecSpec spec = client::command(request.argv);
    setExecLimits(*spec.mutable_limits(), request.limits);
    client::Streams streams;
    streams.stdinBytes = request.stdinBytes;
    streams.stop = request.stop;
    streams.timeout = std::chrono::milliseconds(request.limits.wallMs) + kPatience;
    ExecAnswer answer;
    uint64_t delivered = 0;
    uint64_t nextOut = 0;
    uint64_t nextErr = 0;
    // Counted as they arrive: the service's own figures are not the measure.
    streams.onOutput = [&](v1::OutputStream stream, uint64_t offset, std::string_view bytes) {
      bool isOut = stream == v1::STDOUT;
      uint64_t& next = isOut ? nextOut : nextErr;
      std::string& kept = isOut ? answer.out : answer.err;
      bool& cut = isOut ? answer.outCut : answer.errCut;
      size_t room = request.keepBytes - std::min(request.keepBytes, kept.size());
      cut = cut || offset != next || bytes.size() > room;
      next = offset + bytes.size();
      if (isOut) delivered += bytes.size();
      kept.append(bytes.substr(0, room));
    };
    try {
      client::Outcome outcome = client.exec(id, spec, streams);
      answer.report = reportOf(outcome.result);
    } catch (const client::ApiError& error) {
      answer.report.failure = describe(error);
      if (isFatal(error) || request.stop.stop_requested()) {
        throw ClientError(answer.report.failure, true);
      }
    }
    answer.report.stdoutDelivered = delivered;
    return answer;
  }

  Receipt release(const std::string& id) override {
    return guarded([&] {
      v1::Receipt from = client.release(id);
      Receipt receipt;
      receipt.complete = from.complete();
      for (const v1::ReceiptItem& item : from.left()) {
        if (!receipt.left.empty()) receipt.left += ", ";
        receipt.left +=
            item.kind() + " " + item.name() + " (" + errnoName(item.error_number()) + ")";
      }
      return receipt;
    });
  }

 private:
  static bool isFatal(const client::ApiError& error) {
    return error.reason() == client::kNotReachable;
  }
  static std::string describe(const client::ApiError& error) {
    std::string text = error.code();
    if (!error.reason().empty()) text += " " + error.reason();
    return text + ": " + error.what();
  }

  template <typename F>
  auto guarded(F&& call) -> decltype(call()) {
    try {
      return call();
    } catch (const client::ApiError& error) {
      throw ClientError(describe(error), isFatal(error));
    }
  }

  // Unknown to the service: taken for none, so that nothing is armed by mistake.
  bool isSandbox(const std::string& runtime) {
    if (!known.has_value()) known = client.runtimes();
    for (const v1::RuntimeInfo& each : known->runtimes()) {
      if (each.name() == runtime) return each.is_sandbox();
    }
    return false;
  }

  client::Client client;
  std::optional<v1::RuntimesResponse> known;
};

}  // namespace

std::unique_ptr<SandboxClient> makeGrpcClient(const std::string& address) {
  try {
    return std::make_unique<GrpcClient>(address);
  } catch (const client::ApiError& error) {
    throw ClientError(error.what(), true);
  }
}

int runEscape(const EscapeOptions& options) {
  std::stop_source stop;
  // Before the client, whose threads must not take the signals.
  cli::Interrupts interrupts(stop);
  EscapeOptions stoppable = options;
  stoppable.stop = stop.get_token();
  int status = 0;
  try {
    std::unique_ptr<SandboxClient> client = makeGrpcClient(options.address);
    status = runEscape(stoppable, *client);
  } catch (const ClientError& error) {
    status = reportFailure(error);
  }
  return interrupts.signal() != 0 ? 128 + interrupts.signal() : status;
}

}  // namespace cordon::escape
