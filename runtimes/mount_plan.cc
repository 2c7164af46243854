#include "runtimes/mount_plan.h"

#include <sys/stat.h>

#include "runtimes/runtime.h"

namespace cordon::runtimes {

std::string planFlags(bool readOnly, bool noSuid, bool noDev, bool noExec) {
  std::string flags = readOnly ? "ro" : "rw";
  if (noSuid) flags += ",nosuid";
  if (noDev) flags += ",nodev";
  if (noExec) flags += ",noexec";
  return flags;
}

MountPlan imagePlan(const Image& image, bool writable) {
  MountPlan plan;
  for (auto& mount : image.mounts) {
    bool overlay = writable && mount.directory;
    std::string what = mount.where.empty() ? "image " + image.name : "of the image";
    if (overlay) what = "overlay over " + what;
    plan.push_back({what, "/" + mount.where, planFlags(!overlay, true, true, false)});
  }
  return plan;
}

KernelPath lookUp(const std::string& path) {
  struct stat status;
  if (lstat(path.c_str(), &status) != 0) return KernelPath::kAbsent;
  return S_ISDIR(status.st_mode) ? KernelPath::kDirectory : KernelPath::kFile;
}

}  // namespace cordon::runtimes
