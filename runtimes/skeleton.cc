#include "runtimes/skeleton.h"

#include <errno.h>
#include <fcntl.h>
#include <kj/debug.h>
#include <spdlog/spdlog.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/open_beneath.h"
#include "runtimes/oci/bundle.h"
#include "runtimes/remove_tree.h"

namespace cordon::runtimes {

namespace {

kj::AutoCloseFd openPlace(int parent, const std::string& path) {
  int fd;
  // A bind may go onto what another bind brought.
  KJ_SYSCALL(fd = ipc::openBeneath(parent, path.c_str(), O_PATH, ipc::Mounts::kAny), path);
  return kj::AutoCloseFd(fd);
}

// A detached clone of the mount that `source` is on, rooted there.
kj::AutoCloseFd cloneReadOnly(int source) {
  int raw;
  KJ_SYSCALL(raw = open_tree(source, "", AT_EMPTY_PATH | OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC));
  kj::AutoCloseFd mount(raw);
  mount_attr attributes = {};
  attributes.attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV;
  attributes.propagation = MS_PRIVATE;
  KJ_SYSCALL(mount_setattr(mount, "", AT_EMPTY_PATH, &attributes, sizeof attributes));
  return mount;
}

void attach(int mount, int target) {
  KJ_SYSCALL(move_mount(mount, "", target, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH));
}

}  // namespace

Skeleton::Skeleton(int work, const std::string& workPath, std::string name)
    : name_(std::move(name)), path_(workPath + "/" + name_) {
  int own;
  KJ_SYSCALL(own = fcntl(work, F_DUPFD_CLOEXEC, 3));
  work_ = kj::AutoCloseFd(own);
  KJ_SYSCALL(mkdirat(work_, name_.c_str(), 0755), name_);
  // Whatever the umask: mapped ids pass through it.
  KJ_SYSCALL(fchmodat(work_, name_.c_str(), 0755, 0), name_);
  root_ = openPlace(work_, name_);
}

Skeleton::~Skeleton() noexcept(false) {
  if (mounted_) {
    // By path: a mount can't be detached by fd. The directory is root's alone.
    if (umount2(path_.c_str(), MNT_DETACH | UMOUNT_NOFOLLOW) != 0) {
      spdlog::error("{}: {}", path_, strerror(errno));
    }
  }
  root_ = nullptr;
  for (int tries = 0; tries < 100; ++tries) {
    auto left = removeTree(work_, name_);
    if (left.empty() || left[0].error != EAGAIN) break;
  }
}

void Skeleton::directory(const std::string& path, mode_t mode) {
  KJ_SYSCALL(mkdirat(root_, path.c_str(), mode), path);
  KJ_SYSCALL(fchmodat(root_, path.c_str(), mode, 0), path);
}

void Skeleton::file(const std::string& path, const std::string& content) {
  int raw;
  KJ_SYSCALL(
      raw = openat(root_, path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644),
      path);
  kj::AutoCloseFd file(raw);
  KJ_SYSCALL(fchmod(file, 0644), path);
  kj::FdOutputStream(file.get()).write(content.data(), content.size());
}

void Skeleton::link(const std::string& path, const std::string& target) {
  KJ_SYSCALL(symlinkat(target.c_str(), root_, path.c_str()), path);
}

void Skeleton::seal(bool own) {
  attach(cloneReadOnly(root_), root_);
  mounted_ = true;
  mounts_.push_back({"", true, own});
  root_ = openPlace(work_, name_);  // the mount's root, no longer what is under it
}

void Skeleton::bind(int source, const std::string& path, bool own) {
  KJ_REQUIRE(mounted_, "seal() comes first");
  attach(cloneReadOnly(source), openPlace(root_, path));
  struct stat status;
  KJ_SYSCALL(fstat(source, &status), path);
  mounts_.push_back({path, S_ISDIR(status.st_mode), own});
}

void addMountPoints(Skeleton& skeleton) {
  for (const char* name : {"proc", "sys", "dev", ".cordon"}) skeleton.directory(name);
  // runc gives a tmpfs the mode of the directory that it mounts on.
  for (const char* name : {"tmp", "work"}) skeleton.directory(name, 01777);
  skeleton.file(kAgentPath + 1, "");
}

}  // namespace cordon::runtimes
