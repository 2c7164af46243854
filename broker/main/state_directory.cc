#include "broker/main/state_directory.h"

#include <errno.h>
#include <fcntl.h>
#include <kj/debug.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "broker/main/identity.h"

namespace cordon::broker {

StateDirectory::StateDirectory(const std::string& path) : path_(path) {
  if (mkdir(path.c_str(), 0700) < 0 && errno != EEXIST) {
    KJ_FAIL_SYSCALL("mkdir of the state directory", errno, path);
  }
  int opened;
  KJ_SYSCALL(opened = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), path);
  kj::AutoCloseFd directory(opened);
  struct stat st;
  KJ_SYSCALL(fstat(directory.get(), &st), path);
  KJ_REQUIRE(st.st_uid == geteuid(), "the state directory is not ours", path, st.st_uid);
  KJ_REQUIRE((st.st_mode & 022) == 0, "the state directory can be written by others", path);

  int lock;
  KJ_SYSCALL(
      lock = openat(directory.get(), "lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600),
      path);
  lock_ = kj::AutoCloseFd(lock);
  // Held by the open file, so the kernel gives it up when we die.
  if (flock(lock_.get(), LOCK_EX | LOCK_NB) < 0) {
    int error = errno;
    KJ_REQUIRE(error != EWOULDBLOCK, "another broker serves this state directory", path);
    KJ_FAIL_SYSCALL("flock", error, path);
  }
  instance_ = hashToken(std::to_string(st.st_dev) + ":" + std::to_string(st.st_ino)).substr(0, 12);
}

}  // namespace cordon::broker
