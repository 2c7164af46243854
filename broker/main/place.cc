#include "broker/main/place.h"

#include <errno.h>
#include <kj/debug.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include "broker/main/recovery.h"

namespace cordon::broker {

namespace {
constexpr char kRoot[] = "/run/cordon";

void makeDirectory(const std::string& path, mode_t mode) {
  if (mkdir(path.c_str(), mode) < 0 && errno != EEXIST) KJ_FAIL_SYSCALL("mkdir", errno, path);
}
}  // namespace

Place::Place(const Options& options, const StateDirectory& state) : vmAgent_(options.vmAgent) {
  if (geteuid() == 0) {
    root_ = std::string(kRoot) + "/" + state.instance();
    // Before anything is built anew: a runtime that an earlier broker left half
    // way would go on making cgroups for a sandbox that we clean up.
    size_t killed = killEarlierNamespace(root_);
    if (killed > 0) spdlog::warn("killed {} processes of an earlier broker", killed);
    mounts_ = std::make_unique<PrivateMounts>(kRoot, state.instance());
    vmAgent_ = mounts_->installProgram(options.vmAgent, "vm-agent");
  } else {
    root_ = state.path() + "/run";
    makeDirectory(root_, 0711);
  }
  makeDirectory(sandboxes(), 0711);
}

int Place::remove() {
  if (mounts_) return mounts_->remove();
  for (auto& path : {sandboxes(), images(), root_}) {
    if (rmdir(path.c_str()) < 0 && errno != ENOENT) return errno;
  }
  return 0;
}

}  // namespace cordon::broker
