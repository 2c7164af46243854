#include "runtimes/oci/runc_create.h"

#include <errno.h>
#include <kj/debug.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <fstream>

#include "runtimes/kill_cgroups.h"
#include "runtimes/oci/runc_files.h"
#include "runtimes/oci/runc_scratch.h"

namespace cordon::runtimes {

namespace {

constexpr kj::Duration kKilledEnds = 5 * kj::SECONDS;

std::string describe(const broker::ExitStatus& status) {
  return (status.signaled ? "was killed by signal " : "exited with status ") +
         std::to_string(status.code);
}

bool endsWith(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

// "4:memory:/path" or "0::/path": does this line's hierarchy limit anything?
bool isLimiting(const std::string& controllers, broker::CgroupMode mode) {
  if (mode == broker::CgroupMode::kV2) return controllers.empty();
  std::string list = "," + controllers + ",";
  return list.find(",memory,") != std::string::npos || list.find(",pids,") != std::string::npos;
}

}  // namespace

RuncCreate::RuncCreate(broker::Children& children, kj::Timer& timer, const RuncOptions& options,
                       CreateRequest request)
    : children_(children), timer_(timer), options_(options), request_(kj::mv(request)) {}

kj::Promise<RuncCreate::Result> RuncCreate::run(BundleInput input) {
  kj::Maybe<kj::Exception> fault = kj::runCatchingExceptions([&]() {
    int ns = request_.cgroups->namespaceFd();
    if (ns >= 0) input.cgroupNamespacePath = bindNamespace(request_.directory, ns);
    writeRuncFiles(request_.directory, bundleConfig(input));
    if (!input.ownRoot.empty()) layers_ = mountScratch(request_);
    output_ = makeOutputFile();
    hold_ = children_.holdStrays();
    runc_ = start();
  });
  KJ_IF_MAYBE (exception, fault) {
    spdlog::error("{}: runc could not be started: {}", request_.name,
                  exception->getDescription().cStr());
    return fail(rpc::Reason::RUNTIME_FAILED, "runc could not be started");
  }
  request_.control = nullptr;  // the agent's end is the agent's alone

  auto timeout = timer_.afterDelay(options_.createTimeout).then([]() {
    return kj::Maybe<broker::ExitStatus>();
  });
  return runc_->onExit()
      .then([](broker::ExitStatus status) { return kj::Maybe<broker::ExitStatus>(status); })
      .exclusiveJoin(kj::mv(timeout))
      .then([this](kj::Maybe<broker::ExitStatus> ended) {
        KJ_IF_MAYBE (status, ended) return afterRun(*status);
        return afterTimeout();
      });
}

kj::Own<broker::Child> RuncCreate::start() {
  broker::SpawnSpec spec;
  spec.program = options_.runc;
  const std::string& directory = request_.directory;
  spec.argv = {"runc",
               "--root",
               directory + "/" + kStateDir,
               "--log",
               directory + "/" + kLogFile,
               "run",
               "--detach",
               "--pid-file",
               directory + "/" + kPidFile,
               "--bundle",
               directory + "/" + kBundleDir,
               request_.name};
  spec.env = {"PATH=/usr/sbin:/usr/bin:/sbin:/bin"};
  spec.fds = {{request_.control.get(), 0}, {output_.get(), 1}, {output_.get(), 2}};
  // runc knows of none: its init inherits it.
  spec.ownCore = request_.ownCore;
  return children_.spawn(spec);
}

kj::Promise<RuncCreate::Result> RuncCreate::afterRun(broker::ExitStatus status) {
  if (status.signaled || status.code != 0) {
    spdlog::error("{}: runc {}: {}", request_.name, describe(status),
                  describeRuncOutput(request_.directory, output_));
    return fail(rpc::Reason::RUNTIME_FAILED, "runc " + describe(status));
  }
  // It has bound what it needs.
  unmountScratch(request_.directory);
  std::optional<pid_t> pid = readPidFile(request_.directory);
  if (!pid) return fail(rpc::Reason::RUNTIME_FAILED, "runc left no pid of its init");
  kj::Maybe<kj::Own<broker::Child>> adopted = children_.adopt(*pid);
  hold_ = nullptr;
  children_.reapStrays();
  KJ_IF_MAYBE (init, adopted) {
    // While we own it its number can't be another's.
    bool inside = isInItsCgroup(*pid);
    KJ_IF_MAYBE (ended, (*init)->exited()) {
      return fail(rpc::Reason::RUNTIME_FAILED, "the agent " + describe(*ended) + " at once");
    }
    if (!inside) {
      stray_ = kj::mv(*init);
      stray_->signal(SIGKILL);
      return stray_->onExit().then([this](broker::ExitStatus) {
        return fail(rpc::Reason::RUNTIME_FAILED, "runc put its init outside the sandbox's cgroup");
      });
    }
    Result result;
    auto& started = result.init<Started>(Started{kj::mv(*init)});
    started.layers = kj::mv(layers_);
    started.core = {runc_->coreCookie(),
                    "PR_SCHED_CORE_GET by what became runc, from which the init has it"};
    return kj::mv(result);
  }
  return fail(rpc::Reason::RUNTIME_FAILED, "the init that runc named is no child of ours");
}

kj::Promise<RuncCreate::Result> RuncCreate::afterTimeout() {
  spdlog::error("{}: runc did not finish in time: {}", request_.name,
                describeRuncOutput(request_.directory, output_));
  return killProgram(*runc_, timer_, kKilledEnds).then([this]() {
    return fail(rpc::Reason::RUNTIME_TIMEOUT,
                "runc did not finish within " +
                    std::to_string(options_.createTimeout / kj::MILLISECONDS) + " ms");
  });
}

kj::Promise<RuncCreate::Result> RuncCreate::fail(rpc::Reason reason, std::string detail,
                                                 int error) {
  layers_.clear();
  request_.control = nullptr;
  hold_ = nullptr;  // nobody's status matters any more
  return killCgroups(*request_.cgroups, children_, timer_, request_.name)
      .then([this, reason, detail = std::move(detail), error]() mutable {
        children_.reapStrays();
        for (const broker::LeftOver& item : removeRuncFiles(request_.directory)) {
          spdlog::warn("{}: {} {} is left: {}", request_.name, item.kind, item.name,
                       strerror(item.error));
        }
        Result result;
        result.init<CreateFailure>(CreateFailure{reason, std::move(detail), error});
        return result;
      });
}

// The kernel's word on it: /proc/PID/cgroup of a process that we own.
bool RuncCreate::isInItsCgroup(pid_t pid) const {
  const std::string expected = request_.cgroups->path() + "/agent";
  std::ifstream file("/proc/" + std::to_string(pid) + "/cgroup");
  std::string line;
  unsigned found = 0;
  while (std::getline(file, line)) {
    size_t first = line.find(':');
    size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) return false;
    if (!isLimiting(line.substr(first + 1, second - first - 1), request_.cgroups->mode())) continue;
    if (!endsWith(line.substr(second + 1), expected)) return false;
    ++found;
  }
  return found > 0;
}

}  // namespace cordon::runtimes
