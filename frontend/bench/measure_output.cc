// Output of a program to a client, beside bare gRPC streaming of the same bytes
// in messages of the same size between two processes. They take turns: bare
// streaming moves twice as much in one process's life as in another's, as the
// scheduler places its threads.
#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <stdexcept>

#include "frontend/bench/coprocess.h"
#include "frontend/bench/internal.h"
#include "frontend/bench/process_tree.h"
#include "frontend/bench/samples.h"
#include "ipc/agent.grpc.pb.h"

namespace cordon::bench {

namespace {

namespace v1 = client::v1;
using Clock = std::chrono::steady_clock;

constexpr unsigned kSlices = 100;
constexpr unsigned kTurns = 4;
constexpr uint64_t kGrowthAllowedKib = 8 * 1024;

// Counts bytes as they come, in several turns, and the rate of every hundredth
// of the whole.
class Meter {
 public:
  explicit Meter(uint64_t expected) : slice(std::max<uint64_t>(1, expected / kSlices)) {}

  void take(size_t bytes) {
    last = Clock::now();
    if (!inTurn) began = sliceBegan = last;
    inTurn = true;
    total += bytes;
    inSlice += bytes;
    if (inSlice < slice) return;
    rates.push_back(megabytesPerSecond(inSlice, last - sliceBegan));
    inSlice = 0;
    sliceBegan = last;
  }
  void endTurn(uint64_t messagesOfTurn) {
    if (inTurn) spent += last - began;
    inTurn = false;
    inSlice = 0;
    messages += messagesOfTurn;
  }
  // From the first message of each turn to its last.
  double rate() const { return megabytesPerSecond(total, spent); }
  uint64_t bytes() const { return total; }
  size_t meanMessage() const { return messages ? total / messages : 0; }
  const std::vector<double>& sliceRates() const { return rates; }

 private:
  static double megabytesPerSecond(uint64_t bytes, Clock::duration time) {
    std::chrono::duration<double> seconds = time;
    return static_cast<double>(bytes) / 1e6 / std::max(seconds.count(), 1e-9);
  }

  uint64_t slice;
  uint64_t total = 0, inSlice = 0, messages = 0;
  bool inTurn = false;
  Clock::time_point began, sliceBegan, last;
  Clock::duration spent{0};
  std::vector<double> rates;
};

// Resident memory of the instance's processes over time.
class Growth {
 public:
  explicit Growth(pid_t instance) : root(instance) {}

  void sample() {
    if (root == 0) return;
    for (pid_t pid : treeOf(root)) {
      uint64_t now = residentKib(pid);
      auto [entry, isNew] = first.try_emplace(pid, now);
      if (!isNew && now > entry->second) {
        largest[commandName(pid)] = std::max(largest[commandName(pid)], now - entry->second);
      }
    }
  }
  // "" when no process grew by more than is allowed.
  std::string describe() const {
    std::string text;
    for (const auto& [name, kib] : largest) {
      if (kib > kGrowthAllowedKib) text += name + " grew by " + std::to_string(kib) + " KiB; ";
    }
    return text;
  }
  uint64_t most() const {
    uint64_t result = 0;
    for (const auto& each : largest) result = std::max(result, each.second);
    return result;
  }

 private:
  pid_t root;
  std::map<pid_t, uint64_t> first;
  std::map<std::string, uint64_t> largest;
};

void cordonTurn(const Context& context, uint64_t bytes, Growth& growth, Meter& meter) {
  v1::SandboxSpec sandbox = sandboxOf("");
  sandbox.mutable_limits()->set_output_bytes(static_cast<int64_t>(bytes));
  sandbox.mutable_limits()->set_wall_ms(600'000);
  sandbox.mutable_limits()->set_cpu_time_ms(600'000);

  client::Streams streams;
  const uint64_t before = meter.bytes();
  uint64_t sinceSample = 0;
  streams.onOutput = [&](v1::OutputStream, uint64_t, std::string_view data) {
    meter.take(data.size());
    sinceSample += data.size();
    // The first samples are taken once buffers have filled.
    if (sinceSample >= bytes / 20) {
      growth.sample();
      sinceSample = 0;
    }
  };
  // Written in pieces as a pipe holds them: `head -c` writes 4 KiB at a time and
  // spends more of the two CPUs on that than all of us together.
  client::Outcome outcome =
      context.client.run(sandbox,
                         client::command({"dd", "if=/dev/zero", "bs=64K", "iflag=count_bytes",
                                          "count=" + std::to_string(bytes), "status=none"}),
                         streams);
  requireSuccess(outcome);
  meter.endTurn(outcome.outputMessages);
  if (meter.bytes() - before != bytes) {
    throw std::runtime_error("output: " + std::to_string(meter.bytes() - before) +
                             " bytes came of " + std::to_string(bytes));
  }
}

// A directory for the bare server's socket, removed at the end.
class SocketDirectory {
 public:
  SocketDirectory() {
    char name[] = "/tmp/cordon-bench.XXXXXX";
    if (mkdtemp(name) == nullptr) throw std::runtime_error("can't make a directory in /tmp");
    path = name;
  }
  ~SocketDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  SocketDirectory(const SocketDirectory&) = delete;
  SocketDirectory& operator=(const SocketDirectory&) = delete;
  std::string socket() const { return path + "/bare.sock"; }

 private:
  std::string path;
};

void bareTurn(const Context& context, uint64_t bytes, size_t messageBytes, Meter& meter) {
  SocketDirectory directory;
  Coprocess server({context.libexec + "/bench/output-server", directory.socket(),
                    std::to_string(bytes), std::to_string(messageBytes)});
  server.ask("ready");
  auto channel =
      grpc::CreateChannel("unix:" + directory.socket(), grpc::InsecureChannelCredentials());
  auto stub = v1::Agents::NewStub(channel);

  const uint64_t before = meter.bytes();
  uint64_t messages = 0;
  grpc::ClientContext call;
  auto stream = stub->Run(&call);
  stream->WritesDone();
  for (v1::ExecResponse response; stream->Read(&response);) {
    meter.take(response.output().data().size());
    ++messages;
  }
  grpc::Status status = stream->Finish();
  if (!status.ok() || meter.bytes() - before != bytes) {
    throw std::runtime_error("bare streaming failed: " + status.error_message());
  }
  meter.endTurn(messages);
}

}  // namespace

std::vector<Row> measureOutput(const Context& context) {
  Growth growth(listenerOf(context.client.address()));
  Meter ours(context.options.outputBytes), bare(context.options.outputBytes);
  for (unsigned turn = 1; turn <= kTurns; ++turn) {
    // The last turn takes what the division leaves.
    uint64_t bytes = context.options.outputBytes * turn / kTurns - ours.bytes();
    if (bytes == 0) continue;
    std::string which = ", turn " + std::to_string(turn) + " of " + std::to_string(kTurns);
    context.progress("output: through cordon" + which);
    cordonTurn(context, bytes, growth, ours);
    context.progress("output: bare gRPC" + which);
    bareTurn(context, bytes, ours.meanMessage(), bare);
  }

  // A low rate is a bad one: p99 is what 99 of 100 slices reach.
  Row row = rowOf("output", "MB/s", ours.sliceRates());
  row.p99 = quantile(ours.sliceRates(), 0.01);
  row.baselineName = "bare gRPC";
  row.baseline = bare.rate();
  row.ratio = ours.rate() / bare.rate();
  row.target = ">= 0.4 x bare, no growth";
  row.met = *row.ratio >= 0.4 && growth.describe().empty();
  row.note = std::to_string(ours.bytes() / 1'000'000) + " MB in messages of " +
             std::to_string(ours.meanMessage()) + " bytes; the rate of the whole is " +
             std::to_string(static_cast<uint64_t>(ours.rate())) + " MB/s; " +
             (growth.describe().empty()
                  ? "no process grew by more than " + std::to_string(growth.most()) + " KiB"
                  : growth.describe());
  Row baseline = rowOf("bare gRPC output", "MB/s", bare.sliceRates());
  baseline.p99 = quantile(bare.sliceRates(), 0.01);
  return {row, baseline};
}

}  // namespace cordon::bench
