#include "runtimes/jail/jail.h"

#include <errno.h>
#include <fcntl.h>
#include <kj/debug.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "runtimes/copying.h"
#include "runtimes/detached_mounts.h"
#include "runtimes/host_checks.h"
#include "runtimes/jail/jail_launch.h"
#include "runtimes/jail/jail_spec.h"
#include "runtimes/kill_cgroups.h"
#include "runtimes/sealed_file.h"

namespace cordon::runtimes {

namespace {

constexpr char kVersion[] = "1";

class JailRuntime final : public Runtime {
 public:
  JailRuntime(broker::Children& children, kj::Timer& timer, const broker::CgroupTree& cgroups,
              JailOptions options)
      : children_(children), timer_(timer), cgroups_(cgroups), options_(std::move(options)) {}
  ~JailRuntime() noexcept(false) override {}

  const char* name() const override { return "jail"; }
  bool isSandbox() const override { return true; }
  bool needsCgroups() const override { return true; }
  bool needsImage() const override { return true; }
  bool canWriteRoot() const override { return true; }

  kj::Promise<Probe> probe() override {
    KJ_IF_MAYBE (no, checkHost(cgroups_)) return kj::mv(*no);
    if (access(options_.jailer.c_str(), X_OK) != 0) {
      return Probe::no("no cordon-jailer at " + options_.jailer + ": " + strerror(errno),
                       "install cordon wholly");
    }
    if (std::string lacks = whatTheKernelLacks(); !lacks.empty()) {
      return Probe::no("this kernel lacks " + lacks, "Linux 6.1 or newer");
    }
    prepare();
    Probe probe;
    probe.available = true;
    probe.version = kVersion;
    addHostNotes(probe);
    return probe;
  }

  kj::Promise<kj::OneOf<Started, CreateFailure>> create(CreateRequest request) override {
    KJ_REQUIRE(request.image != nullptr && request.cgroups != nullptr,
               "a jail needs an image and cgroups");
    prepare();
    auto launcher = kj::heap<JailLauncher>(children_, timer_, plan(request));
    auto launched = launcher->run();
    return launched.attach(kj::mv(launcher))
        .then([this, cgroups = request.cgroups,
               name = request.name](JailLauncher::Result&& result) -> kj::Promise<Created> {
          if (result.is<CreateFailure>()) return Created(kj::mv(result.get<CreateFailure>()));
          auto& started = result.get<Launched>();
          KJ_IF_MAYBE (ended, started.init->exited()) {
            return endedAtOnce(*cgroups, name, ended->code);
          }
          Created created;
          created.init<Started>(Started{kj::mv(started.init), kj::mv(started.steps),
                                        started.namespaces, started.core, kj::mv(started.layers)});
          return kj::mv(created);
        });
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
    return jailMountPlan(request, cpus_);
  }
  std::string version() const override { return kVersion; }

  // Mounts and namespaces went with the last process.
  std::vector<broker::LeftOver> cleanup(const std::string&, const std::string&) override {
    return {};
  }

  bool keepsState() const override { return false; }

  std::string isolation() const override {
    return "jail: namespaces (user, mount, pid, net, ipc, uts, cgroup) that belong to the host, " +
           cgroups_.describe() + ", capabilities";
  }

 private:
  static std::string whatTheKernelLacks() {
    int fd = fsopen("tmpfs", FSOPEN_CLOEXEC);
    if (fd < 0) return std::string("the new mount interface (") + strerror(errno) + ")";
    close(fd);
    struct mount_attr nothing = {};
    if (mount_setattr(-1, "", AT_EMPTY_PATH, &nothing, sizeof(nothing)) < 0 && errno == ENOSYS) {
      return "mount_setattr";
    }
    return "";
  }

  using Created = kj::OneOf<Started, CreateFailure>;

  // `request` lives until run() has returned.
  JailLaunch plan(CreateRequest& request) const {
    JailLaunch launch;
    launch.name = request.name;
    launch.program = options_.jailer;
    launch.timeout = options_.createTimeout;
    launch.open = [this, &request]() {
      JailDescriptors with;
      with.control = kj::mv(request.control);
      with.root = detachedTree(request.image->rootfs);
      with.inside = agent_.get();
      with.filter = request.explain ? options_.filters.asking : options_.filters.refusing;
      with.cgroup = request.cgroups->initFds();
      with.cgroupNamespace = request.cgroups->namespaceFd();
      with.spec = sealedSpec(request, cpus_, with.cgroupFds());
      return with;
    };
    launch.killAll = [this, cgroups = request.cgroups, name = request.name]() {
      return kill(*cgroups, name);
    };
    return launch;
  }

  kj::Promise<void> kill(broker::SandboxCgroups& cgroups, const std::string& name) const {
    auto held = kj::heap<std::string>(name);
    auto killed = killCgroups(cgroups, children_, timer_, *held);
    return killed.attach(kj::mv(held));
  }

  kj::Promise<Created> endedAtOnce(broker::SandboxCgroups& cgroups, const std::string& name,
                                   int code) const {
    return kill(cgroups, name).then([code]() {
      return Created(CreateFailure{rpc::Reason::RUNTIME_FAILED,
                                   "the agent ended at once with " + std::to_string(code)});
    });
  }

  // Once: what runs in a sandbox can't be changed by whoever replaces a file later.
  void prepare() {
    if (agent_.get() >= 0) return;
    agent_ = sealedProgram("vm-agent", options_.vmAgent);
    cpus_ = static_cast<unsigned>(std::max(1L, sysconf(_SC_NPROCESSORS_CONF)));
  }

  broker::Children& children_;
  kj::Timer& timer_;
  const broker::CgroupTree& cgroups_;
  JailOptions options_;
  kj::AutoCloseFd agent_;
  unsigned cpus_ = 1;
};

}  // namespace

kj::Own<Runtime> makeJailRuntime(broker::Children& children, kj::Timer& timer,
                                 const broker::CgroupTree& cgroups, JailOptions options) {
  return kj::heap<JailRuntime>(children, timer, cgroups, std::move(options));
}

}  // namespace cordon::runtimes
