#include "broker/private_mounts.h"

#include <errno.h>
#include <fcntl.h>
#include <kj/debug.h>
#include <kj/io.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include "broker/cgroups_dir.h"
#include "broker/private_directory.h"

namespace cordon::broker {

namespace {

void copyInto(int from, int to) {
  for (;;) {
    ssize_t n;
    KJ_SYSCALL(n = sendfile(to, from, nullptr, 1 << 20));
    if (n == 0) return;
  }
}

// A read-only mount of the file over itself.
void coverReadOnly(const std::string& path) {
  int fd;
  KJ_SYSCALL(fd = open_tree(AT_FDCWD, path.c_str(),
                            OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_SYMLINK_NOFOLLOW),
             path);
  kj::AutoCloseFd tree(fd);
  mount_attr attributes{};
  attributes.attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV;
  KJ_SYSCALL(mount_setattr(fd, "", AT_EMPTY_PATH, &attributes, sizeof(attributes)), path);
  KJ_SYSCALL(move_mount(fd, "", AT_FDCWD, path.c_str(), MOVE_MOUNT_F_EMPTY_PATH), path);
}

}  // namespace

PrivateMounts::PrivateMounts(const std::string& root, const std::string& instance,
                             uint64_t sizeBytes)
    : path_(root + "/" + instance) {
  KJ_REQUIRE(geteuid() == 0, "a mount namespace of its own needs root");
  KJ_REQUIRE(isCgroupName(instance), "not a plain name", instance);
  KJ_SYSCALL(unshare(CLONE_NEWNS));
  // Slave: what the host mounts later is seen here, and never the other way.
  KJ_SYSCALL(mount(nullptr, "/", nullptr, MS_REC | MS_SLAVE, nullptr));
  openPrivateDirectory(root, 0755);
  openPrivateDirectory(path_, 0711);
  std::string options = "mode=0711,size=" + std::to_string(sizeBytes);
  KJ_SYSCALL(mount("cordon", path_.c_str(), "tmpfs", MS_NOSUID | MS_NODEV, options.c_str()), path_);
  mounted_ = true;
  KJ_ON_SCOPE_FAILURE(remove());
  KJ_SYSCALL(mkdir((path_ + "/programs").c_str(), 0711), path_);
}

PrivateMounts::~PrivateMounts() {
  remove();
}

std::string PrivateMounts::installProgram(const std::string& source, const std::string& name) {
  KJ_REQUIRE(isCgroupName(name), "not a plain name", name);
  std::string path = path_ + "/programs/" + name;
  {
    int from, to;
    KJ_SYSCALL(from = open(source.c_str(), O_RDONLY | O_CLOEXEC), source);
    kj::AutoCloseFd ownedFrom(from);
    KJ_SYSCALL(to = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0),
               path);
    kj::AutoCloseFd ownedTo(to);
    KJ_ON_SCOPE_FAILURE(unlink(path.c_str()));
    copyInto(from, to);
    // Executable, readable by nobody: with that the kernel makes the process
    // non-dumpable from its first instruction.
    KJ_SYSCALL(fchmod(to, 0111), path);
  }
  // The writer is closed by now; a program with an open writer can't be run.
  coverReadOnly(path);
  return path;
}

int PrivateMounts::remove() {
  if (!mounted_) return 0;
  // Detached at once; it is freed when the last sandbox that has it goes.
  if (umount2(path_.c_str(), MNT_DETACH | UMOUNT_NOFOLLOW) < 0 && errno != EINVAL &&
      errno != ENOENT) {
    return errno;
  }
  if (rmdir(path_.c_str()) < 0 && errno != ENOENT) return errno;
  mounted_ = false;
  return 0;
}

}  // namespace cordon::broker
