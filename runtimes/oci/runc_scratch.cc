#include "runtimes/oci/runc_scratch.h"

#include <fcntl.h>
#include <kj/debug.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/open_beneath.h"
#include "runtimes/copying.h"
#include "runtimes/detached_mounts.h"
#include "runtimes/kernel_paths.h"

namespace cordon::runtimes {

namespace {

// A tmpfs of that size, its root for everybody (mode 1777) and of those host ids.
kj::AutoCloseFd sizedTmpfs(uint64_t bytes, uint32_t uid, uint32_t gid) {
  return detachedTmpfs({{"source", "scratch"},
                        {"mode", "1777"},
                        {"size", std::to_string(bytes)},
                        {"nr_inodes", std::to_string(scratchInodes(bytes))},
                        {"uid", std::to_string(uid)},
                        {"gid", std::to_string(gid)}},
                       MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV);
}

// `place` is a descriptor of the directory.
void mountOn(int mount, int place) {
  KJ_SYSCALL(move_mount(mount, "", place, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH));
}

kj::AutoCloseFd cloneOf(int mount) {
  int raw;
  KJ_SYSCALL(raw = open_tree(mount, "", AT_EMPTY_PATH | OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC));
  return kj::AutoCloseFd(raw);
}

// In the image's tree, which is root's: a directory and no link.
kj::AutoCloseFd placeIn(int root, const char* name) {
  int raw;
  KJ_SYSCALL(raw = ipc::openBeneath(root, name, O_PATH | O_DIRECTORY, ipc::Mounts::kAny), name);
  return kj::AutoCloseFd(raw);
}

}  // namespace

std::string scratchRoot(const std::string& directory) {
  return directory + "/root";
}

Layers mountScratch(const CreateRequest& request) {
  auto path = scratchRoot(request.directory);
  KJ_SYSCALL(mkdir(path.c_str(), 0711), path);
  auto root = detachedTree(request.image->rootfs);
  KJ_SYSCALL(move_mount(root, "", AT_FDCWD, path.c_str(), MOVE_MOUNT_F_EMPTY_PATH), path);
  auto& limits = request.limits;
  auto& image = *request.image;
  uint32_t first = request.ids.first;
  auto work = sizedTmpfs(limits.diskBytes, first + image.defaultUid, first + image.defaultGid);
  auto tmp = sizedTmpfs(limits.tmpBytes, first, first);
  mountOn(work, placeIn(root, "work"));
  mountOn(tmp, placeIn(root, "tmp"));
  Layers layers;
  layers.push_back(cloneOf(work));
  layers.push_back(cloneOf(tmp));
  if (!request.willRestore) closeForWriting(layers);
  return layers;
}

void unmountScratch(const std::string& directory) {
  auto path = scratchRoot(directory);
  // Where nothing is mounted it says EINVAL or ENOENT, and that is fine.
  umount2(path.c_str(), MNT_DETACH | UMOUNT_NOFOLLOW);
  rmdir(path.c_str());
}

}  // namespace cordon::runtimes
