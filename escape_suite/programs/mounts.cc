// Mounting, in a mount namespace of its own where one can be had, so that
// nothing of it is ever seen by anybody else.
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "escape_suite/programs/program.h"

namespace cordon::escape_programs {
namespace {

constexpr char kPlace[] = "./escape-mount";

int mountHere(const char* type, unsigned long flags, const char* source, const char* data) {
  int error = errorOf(mount(source, kPlace, type, flags, data));
  if (error == 0) umount2(kPlace, MNT_DETACH);
  return error;
}

// True when what is mounted from here on is this process's alone. cgroup2 is one
// file system for all: mounted in the host's cgroup namespace, it takes away the
// options that the host's has (systemd's nsdelegate).
bool becomePrivate() {
  return unshare(CLONE_NEWNS | CLONE_NEWCGROUP) == 0 &&
         mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
}

void tryAll() {
  bool isPrivate = becomePrivate();
  report({{"private", isPrivate}});
  // Root without a private namespace would change the machine: not even tried.
  if (!isPrivate && geteuid() == 0) return;
  tried("tmpfs", mountHere("tmpfs", 0, "escape", "size=64k"));
  tried("proc", mountHere("proc", 0, "proc", nullptr));
  tried("sysfs", mountHere("sysfs", 0, "sysfs", nullptr));
  tried("cgroup", mountHere("cgroup", 0, "cgroup", "pids"));
  tried("cgroup2", mountHere("cgroup2", 0, "cgroup2", nullptr));
  tried("bind_root", mountHere(nullptr, MS_BIND | MS_REC, "/", nullptr));
  tried("overlay", mountHere("overlay", 0, "overlay", "lowerdir=/usr,upperdir=/tmp,workdir=/tmp"));
  tried("remount_root_writable",
        errorOf(mount(nullptr, "/", nullptr, MS_REMOUNT | MS_BIND, nullptr)));
  tried("remount_usr_writable",
        errorOf(mount(nullptr, "/usr", nullptr, MS_REMOUNT | MS_BIND, nullptr)));
  tried("unmount_proc", errorOf(umount2("/proc", MNT_DETACH)));
  tried("fsopen", errorOf(syscall(SYS_fsopen, "tmpfs", 0)));
  tried("open_tree", errorOf(syscall(SYS_open_tree, AT_FDCWD, "/", 1 /* OPEN_TREE_CLONE */)));
  tried("pivot_root", errorOf(syscall(SYS_pivot_root, ".", ".")));
}

int tryAllInChild() {
  tryAll();
  return 0;
}

}  // namespace

void mountThings(const Arguments&) {
  if (mkdir(kPlace, 0755) < 0 && errno != EEXIST) {
    report({{"mkdir", errno}});
    return;
  }
  report({{"child", inChild(tryAllInChild)}});
  rmdir(kPlace);
}

}  // namespace cordon::escape_programs
