#include "frontend/bench/bench.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <stdexcept>

#include "frontend/bench/internal.h"
#include "frontend/bench/samples.h"

namespace cordon::bench {

namespace fs = std::filesystem;

namespace {

struct Group {
  const char* name;
  std::vector<Row> (*measure)(const Context&);
};

constexpr Group kGroups[] = {
    {"jail", measureJail},     {"rate", measureRate},       {"scale", measureScale},
    {"steps", measureSteps},   {"exec", measureExec},       {"cold", measureCold},
    {"memory", measureMemory}, {"output", measureOutput},   {"rest", measureRest},
    {"cycles", measureCycles}, {"explain", measureExplain},
};

std::string siblingLibexec() {
  fs::path self = fs::read_symlink("/proc/self/exe");
  fs::path installed = self.parent_path().parent_path() / "libexec/cordon";
  return fs::exists(installed) ? installed.string() : self.parent_path().string();
}

std::string findRunc(const std::string& asked) {
  if (!asked.empty()) return asked;
  for (const char* directory : {"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin"}) {
    std::string path = std::string(directory) + "/runc";
    if (access(path.c_str(), X_OK) == 0) return path;
  }
  return "";
}

}  // namespace

const std::vector<std::string>& groupNames() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> result;
    for (const Group& group : kGroups) result.emplace_back(group.name);
    return result;
  }();
  return names;
}

Report measure(const Options& options, const Progress& progress) {
  for (const std::string& name : options.only) {
    const auto& known = groupNames();
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      throw std::invalid_argument("no such group of figures: " + name);
    }
  }
  if (options.samples == 0) throw std::invalid_argument("at least one sample is needed");
  if (options.outputBytes < 1'000'000) {
    throw std::invalid_argument("at least 1 MB of output is needed");
  }

  client::Client client(options.address.empty() ? client::agentsAddress() : options.address);
  client.runtimes();  // fails here, at once, when nobody serves
  Context context{options, progress, options.libexec.empty() ? siblingLibexec() : options.libexec,
                  findRunc(options.runc), client};

  Report report{readMachine(context.runc), {}};
  for (const Group& group : kGroups) {
    const auto& only = options.only;
    if (!only.empty() && std::find(only.begin(), only.end(), group.name) == only.end()) continue;
    for (Row& row : group.measure(context)) report.rows.push_back(std::move(row));
  }
  return report;
}

Row rowOf(std::string name, std::string unit, const std::vector<double>& samples) {
  Row row;
  row.name = std::move(name);
  row.unit = std::move(unit);
  row.n = static_cast<unsigned>(samples.size());
  row.p50 = median(samples);
  row.p99 = quantile(samples, 0.99);
  return row;
}

Row unmeasured(std::string name, std::string unit, std::string target, std::string why) {
  Row row;
  row.name = std::move(name);
  row.unit = std::move(unit);
  row.target = std::move(target);
  row.note = "not measured: " + std::move(why);
  return row;
}

Row withBaseline(Row row, std::string name, double baseline) {
  row.baselineName = std::move(name);
  row.baseline = baseline;
  return row;
}

client::v1::SandboxSpec sandboxOf(const std::string& runtime) {
  client::v1::SandboxSpec spec;
  spec.set_runtime(runtime);
  return spec;
}

std::string whyNotOffered(const Context& context, const std::string& runtime) {
  const auto offered = context.client.runtimes();
  for (const auto& info : offered.runtimes()) {
    if (info.name() == runtime) return info.available() ? "" : info.reason();
  }
  return "the service has no runtime " + runtime;
}

std::string whyNoRawRunc(const Context& context) {
  if (geteuid() != 0) return "raw runc needs root";
  if (context.runc.empty()) return "there is no runc";
  return "";
}

std::unique_ptr<Coprocess> startRawRunc(const Context& context) {
  return std::make_unique<Coprocess>(
      std::vector<std::string>{context.libexec + "/bench/raw-runc", context.runc,
                               context.libexec + "/bench/container-init"});
}

std::unique_ptr<Coprocess> startSpawnFloor(const Context& context) {
  return std::make_unique<Coprocess>(
      std::vector<std::string>{context.libexec + "/bench/spawn-floor", kProgram});
}

std::unique_ptr<Coprocess> startCloneFloor(const Context& context) {
  std::string bench = context.libexec + "/bench/";
  return std::make_unique<Coprocess>(std::vector<std::string>{
      bench + "jail-floor", bench + "clone-floor", bench + "container-init"});
}

LiveSandbox::LiveSandbox(client::Client& owner, const std::string& runtime) : client(owner) {
  id = client.acquire(sandboxOf(runtime)).id();
}

LiveSandbox::~LiveSandbox() {
  try {
    client.release(id);
  } catch (const client::ApiError&) {
  }
}

double LiveSandbox::exec() {
  auto start = std::chrono::steady_clock::now();
  client::Outcome outcome = client.exec(id, client::command({kProgram}));
  double elapsed = millisecondsSince(start);
  requireSuccess(outcome);
  return elapsed;
}

void requireSuccess(const client::Outcome& outcome) {
  const auto& result = outcome.result;
  if (result.has_exit_code() && result.exit_code() == 0) return;
  throw std::runtime_error("a measured program failed: " + result.ShortDebugString() + " " +
                           outcome.err.bytes);
}

}  // namespace cordon::bench
