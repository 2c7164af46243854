#include "runtimes/detached_mounts.h"

#include <fcntl.h>
#include <kj/debug.h>
#include <sys/mount.h>

namespace cordon::runtimes {

kj::AutoCloseFd detachedTree(const std::string& path) {
  int fd;
  KJ_SYSCALL(
      fd = open_tree(AT_FDCWD, path.c_str(), OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE),
      path);
  return kj::AutoCloseFd(fd);
}

kj::AutoCloseFd detachedTmpfs(const std::vector<std::pair<const char*, std::string>>& options,
                              uint64_t attributes) {
  int raw;
  KJ_SYSCALL(raw = fsopen("tmpfs", FSOPEN_CLOEXEC));
  kj::AutoCloseFd context(raw);
  for (auto& option : options) {
    KJ_SYSCALL(fsconfig(raw, FSCONFIG_SET_STRING, option.first, option.second.c_str(), 0),
               option.first);
  }
  KJ_SYSCALL(fsconfig(raw, FSCONFIG_CMD_CREATE, nullptr, nullptr, 0));
  int mount;
  KJ_SYSCALL(mount = fsmount(raw, FSMOUNT_CLOEXEC, static_cast<unsigned>(attributes)));
  return kj::AutoCloseFd(mount);
}

}  // namespace cordon::runtimes
