#include "broker/private_directory.h"

#include <errno.h>
#include <fcntl.h>
#include <kj/debug.h>
#include <sys/stat.h>
#include <unistd.h>

namespace cordon::broker {

namespace {

void makeDirectory(const std::string& path, mode_t mode) {
  if (mkdir(path.c_str(), mode) < 0 && errno != EEXIST) {
    int error = errno;
    KJ_FAIL_SYSCALL("mkdir", error, path);
  }
}

}  // namespace

kj::AutoCloseFd openPrivateDirectory(const std::string& path, mode_t mode) {
  KJ_REQUIRE(path.size() > 1 && path[0] == '/', "must be an absolute path", path);
  std::string parent = path.substr(0, path.rfind('/'));
  if (!parent.empty()) makeDirectory(parent, 0755);
  makeDirectory(path, mode);
  int fd;
  KJ_SYSCALL(fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), path);
  kj::AutoCloseFd owned(fd);
  struct stat st {};
  KJ_SYSCALL(fstat(fd, &st), path);
  KJ_REQUIRE(st.st_uid == geteuid(), "the directory belongs to somebody else", path, st.st_uid);
  KJ_REQUIRE((st.st_mode & 022) == 0, "others can write to the directory", path);
  return owned;
}

}  // namespace cordon::broker
