#include "runtimes/jail/jail.h"

#include <errno.h>
#include <fcntl.h>
#include <kj/debug.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "runtimes/host_checks.h"
#include "runtimes/jail/jail_create.h"
#include "runtimes/jail/jail_spec.h"
#include "runtimes/sealed_file.h"

namespace cordon::runtimes {

namespace {

constexpr char kVersion[] = "1";
constexpr size_t kMostAgentBytes = 64 << 20;

kj::Array<kj::byte> wholeFile(const std::string& path) {
  int raw;
  KJ_SYSCALL(raw = open(path.c_str(), O_RDONLY | O_CLOEXEC), path);
  kj::AutoCloseFd file(raw);
  return kj::FdInputStream(file.get()).readAllBytes(kMostAgentBytes);
}

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
    auto job = kj::heap<JailCreate>(children_, timer_, options_, parts_, kj::mv(request));
    auto promise = job->run();
    return promise.attach(kj::mv(job));
  }

  MountPlan mountPlan(const CreateRequest& request) const override {
    return jailMountPlan(request, parts_.cpus);
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

  // Once: what runs in a sandbox can't be changed by whoever replaces a file later.
  void prepare() {
    if (agent_.get() >= 0) return;
    // Nobody inside can read it, and it can't be dumped from its first instruction.
    agent_ = sealedFile("vm-agent", wholeFile(options_.vmAgent), 0111);
    parts_ = {agent_.get(), options_.filters,
              static_cast<unsigned>(std::max(1L, sysconf(_SC_NPROCESSORS_CONF)))};
  }

  broker::Children& children_;
  kj::Timer& timer_;
  const broker::CgroupTree& cgroups_;
  JailOptions options_;
  kj::AutoCloseFd agent_;
  JailParts parts_{-1, {}, 1};
};

}  // namespace

kj::Own<Runtime> makeJailRuntime(broker::Children& children, kj::Timer& timer,
                                 const broker::CgroupTree& cgroups, JailOptions options) {
  return kj::heap<JailRuntime>(children, timer, cgroups, std::move(options));
}

}  // namespace cordon::runtimes
