#include "runtimes/oci/runc.h"

#include <errno.h>
#include <fcntl.h>
#include <kj/debug.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "jailer/seccomp.h"
#include "runtimes/copying.h"
#include "runtimes/host_checks.h"
#include "runtimes/oci/bundle.h"
#include "runtimes/oci/runc_create.h"
#include "runtimes/oci/runc_files.h"
#include "runtimes/oci/runc_probe.h"
#include "runtimes/oci/runc_scratch.h"
#include "runtimes/remove_tree.h"

namespace cordon::runtimes {

namespace {

uint64_t hardLimit(int resource) {
  rlimit limit;
  KJ_SYSCALL(getrlimit(static_cast<__rlimit_resource_t>(resource), &limit));
  return limit.rlim_max;
}

class RuncRuntime final : public Runtime {
 public:
  RuncRuntime(broker::Children& children, kj::Timer& timer, const broker::CgroupTree& cgroups,
              RuncOptions options)
      : children_(children),
        timer_(timer),
        cgroups_(cgroups),
        options_(std::move(options)),
        seccomp_(jailer::agentFilterAsOciJson()) {
    if (options_.runc.empty()) options_.runc = findRunc();
  }
  ~RuncRuntime() noexcept(false) override {}

  const char* name() const override { return "runc"; }
  bool isSandbox() const override { return true; }
  bool needsCgroups() const override { return true; }
  bool needsImage() const override { return true; }
  bool agentLoadsAskingFilter() const override { return true; }

  kj::Promise<Probe> probe() override {
    return probeRunc(children_, timer_, cgroups_, options_.runc).then([this](Probe probe) {
      if (!probe.available) return probe;
      version_ = probe.version;
      addHostNotes(probe);
      return probe;
    });
  }

  kj::Promise<kj::OneOf<Started, CreateFailure>> create(CreateRequest request) override {
    KJ_REQUIRE(request.image != nullptr && request.cgroups != nullptr,
               "runc needs an image and cgroups");
    BundleInput input = bundleFor(request);
    auto job = kj::heap<RuncCreate>(children_, timer_, options_, kj::mv(request));
    auto promise = job->run(kj::mv(input));
    return promise.attach(kj::mv(job));
  }

  const char* snapshotKind() const override {
    return options_.copying == nullptr ? "" : options_.copying->kind();
  }
  kj::Promise<CopyResult> snapshot(CopyRequest request) override {
    return options_.copying->snapshot(kj::mv(request));
  }
  kj::Promise<CopyResult> restore(CopyRequest request) override {
    return options_.copying->restore(kj::mv(request));
  }

  MountPlan mountPlan(const CreateRequest& request) const override {
    return bundleMountPlan(bundleFor(request));
  }
  std::string version() const override { return version_; }

  std::vector<broker::LeftOver> cleanup(const std::string&, const std::string& directory) override {
    return removeRuncFiles(directory);
  }

  std::string isolation() const override {
    return "runc " + version_ + ": namespaces (user, mount, pid, net, ipc, uts, cgroup), " +
           cgroups_.describe() + ", capabilities";
  }

 private:
  BundleInput bundleFor(const CreateRequest& request) const {
    BundleInput input;
    input.hostname = request.hostname;
    input.image = request.image;
    input.limits = request.limits;
    input.ids = request.ids;
    input.cgroupsPath = request.cgroups->path() + "/agent";
    input.cgroupV2 = request.cgroups->mode() == broker::CgroupMode::kV2;
    input.hardFiles = hardLimit(RLIMIT_NOFILE);
    input.hardCore = hardLimit(RLIMIT_CORE);
    input.cpus = static_cast<unsigned>(std::max(1L, sysconf(_SC_NPROCESSORS_CONF)));
    // runc knows no filter that asks without a listener of its own: the agent
    // loads it, before it reads anything but its configuration.
    if (!request.explain) input.seccomp = seccomp_;
    if (*snapshotKind() != '\0') input.ownRoot = scratchRoot(request.directory);
    return input;
  }

  broker::Children& children_;
  kj::Timer& timer_;
  const broker::CgroupTree& cgroups_;
  RuncOptions options_;
  std::string seccomp_;
  std::string version_ = "(not probed)";
};

}  // namespace

kj::Own<Runtime> makeRuncRuntime(broker::Children& children, kj::Timer& timer,
                                 const broker::CgroupTree& cgroups, RuncOptions options) {
  return kj::heap<RuncRuntime>(children, timer, cgroups, std::move(options));
}

}  // namespace cordon::runtimes
