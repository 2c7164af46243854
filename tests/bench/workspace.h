// A directory with a tmpfs of our own mount namespace on it, for helpers that
// make an image.
#pragma once
#include <sched.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>

namespace cordon::bench {

[[noreturn]] inline void fail(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

class Workspace {
 public:
  Workspace() {
    if (unshare(CLONE_NEWNS) < 0) fail("unshare");
    if (mount(nullptr, "/", nullptr, MS_REC | MS_SLAVE, nullptr) < 0) fail("mount /");
    char name[] = "/run/cordon-bench.XXXXXX";
    if (mkdtemp(name) == nullptr) fail("mkdtemp");
    path = name;
    if (mount("tmpfs", name, "tmpfs", MS_NOSUID | MS_NODEV, "mode=0711") < 0) {
      int error = errno;
      rmdir(name);
      errno = error;
      fail("mount tmpfs");
    }
  }
  ~Workspace() {
    umount2(path.c_str(), MNT_DETACH);
    rmdir(path.c_str());
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  std::string path;
};

}  // namespace cordon::bench
