#include "runtimes/host/host.h"

#include <errno.h>
#include <fcntl.h>
#include <kj/debug.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtimes/remove_tree.h"

namespace cordon::runtimes {

namespace {

constexpr char kWork[] = "work";

class HostRuntime final : public Runtime {
 public:
  HostRuntime(broker::Children& children, HostOptions options)
      : children_(children), options_(std::move(options)) {}
  ~HostRuntime() noexcept(false) override {}

  const char* name() const override { return "host"; }
  bool isSandbox() const override { return false; }
  bool needsCgroups() const override { return false; }
  bool needsImage() const override { return false; }
  std::string version() const override { return "1"; }
  const char* argumentsChosenBy() const override { return "the program itself, unfiltered"; }

  kj::Promise<Probe> probe() override {
    Probe probe;
    probe.version = "1";
    probe.notes = {"not a sandbox: rlimits and nothing else",
                   "programs run as the service's own user: one trust zone"};
    if (!options_.allowed) {
      probe.reason = "not allowed in this instance";
      probe.fix = "start a private instance with cordon up --allow-host-runtime";
    } else if (access(options_.vmAgent.c_str(), X_OK) != 0) {
      probe.reason = "vm-agent can't be executed at " + options_.vmAgent;
      probe.fix = "install cordon, or name it with --vm-agent";
    } else {
      probe.available = true;
    }
    return probe;
  }

  kj::Promise<kj::OneOf<Started, CreateFailure>> create(CreateRequest request) override {
    kj::OneOf<Started, CreateFailure> result;
    if (!options_.allowed) {
      result.init<CreateFailure>(CreateFailure{rpc::Reason::RUNTIME_NOT_ALLOWED,
                                               "the host runtime is not allowed here", 0});
      return kj::mv(result);
    }
    std::string work = request.directory + "/" + kWork;
    if (mkdir(work.c_str(), 0700) != 0) {
      int error = errno;
      result.init<CreateFailure>(
          CreateFailure{rpc::Reason::HOST_LIMIT, "the working directory can't be made", error});
      return kj::mv(result);
    }
    kj::Maybe<kj::Exception> fault = kj::runCatchingExceptions(
        [&]() { result.init<Started>(Started{children_.spawn(specFor(request, work))}); });
    KJ_IF_MAYBE (why, fault) {
      spdlog::error("{}: vm-agent could not be started: {}", request.name,
                    why->getDescription().cStr());
      cleanup(request.name, request.directory);
      result.init<CreateFailure>(
          CreateFailure{rpc::Reason::RUNTIME_FAILED, "vm-agent could not be started", 0});
    }
    return kj::mv(result);
  }

  std::vector<broker::LeftOver> cleanup(const std::string&, const std::string& directory) override {
    kj::AutoCloseFd parent(open(directory.c_str(), O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (parent.get() < 0) {
      if (errno == ENOENT) return {};
      return {{"directory", directory, errno}};
    }
    return removeTree(parent, kWork);
  }

  std::string isolation() const override {
    return "host: none (rlimits only, the service's own user, one trust zone)";
  }

 private:
  broker::SpawnSpec specFor(const CreateRequest& request, const std::string& work) const {
    broker::SpawnSpec spec;
    spec.program = options_.vmAgent;
    spec.argv = {options_.vmAgent};
    spec.cwd = work;
    spec.fds = {{request.control.get(), 0}};
    return spec;
  }

  broker::Children& children_;
  HostOptions options_;
};

}  // namespace

kj::Own<Runtime> makeHostRuntime(broker::Children& children, HostOptions options) {
  return kj::heap<HostRuntime>(children, std::move(options));
}

}  // namespace cordon::runtimes
