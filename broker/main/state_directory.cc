#include "broker/main/state_directory.h"

#include <errno.h>
#include <fcntl.h>
#include <kj/debug.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "broker/main/identity.h"

namespace cordon::broker {

namespace {
constexpr int kLockTries = 100;
constexpr timespec kLockPause = {0, 10'000'000};

// Held by the open file, so the kernel gives it up when we die. Not at once: a
// child that a killed broker had just spawned shares it until its exec.
void takeLock(int fd, const std::string& path) {
  for (int n = 0; n < kLockTries; ++n) {
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) return;
    int error = errno;
    if (error != EWOULDBLOCK && error != EINTR) KJ_FAIL_SYSCALL("flock", error, path);
    nanosleep(&kLockPause, nullptr);
  }
  KJ_FAIL_REQUIRE("another broker serves this state directory", path);
}
}  // namespace

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
  takeLock(lock_.get(), path);
  instance_ = hashToken(std::to_string(st.st_dev) + ":" + std::to_string(st.st_ino)).substr(0, 12);
}

}  // namespace cordon::broker
