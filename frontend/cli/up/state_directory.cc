#include "frontend/cli/up/state_directory.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "frontend/cli/failure.h"

namespace cordon::up {
namespace {

using cli::UsageError;

constexpr int kBacklog = 4096;

std::string realPath(const std::string& path) {
  char* real = realpath(path.c_str(), nullptr);
  if (real == nullptr) throw std::system_error(errno, std::system_category(), path);
  std::string result = real;
  free(real);
  return result;
}

// Every parent must let others through, or they can't reach our sockets.
void checkParents(const std::string& path) {
  for (size_t slash = path.rfind('/'); slash != std::string::npos && slash > 0;
       slash = path.rfind('/', slash - 1)) {
    std::string parent = path.substr(0, slash);
    struct stat st {};
    check(stat(parent.c_str(), &st), parent);
    if ((st.st_mode & S_IXOTH) == 0) {
      throw UsageError("--state " + path +
                       ": the frontends run under uids of their own and can't pass through " +
                       parent + "; choose a directory like /run/cordon-NAME");
    }
  }
}

// Who holds the lock wrote its pid there.
std::string holder(int fd) {
  char text[32] = {};
  ssize_t count = pread(fd, text, sizeof(text) - 1, 0);
  return count > 0 ? std::string(" (pid ") + std::string(text, strcspn(text, "\n")) + ")" : "";
}

}  // namespace

StateDirectory::StateDirectory(const std::string& path, bool otherUids) {
  if (path.empty()) throw UsageError("--state is empty");
  if (mkdir(path.c_str(), 0711) < 0 && errno != EEXIST) {
    throw UsageError("--state " + path + ": " + strerror(errno));
  }
  directory = Fd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!directory) throw UsageError("--state " + path + ": " + strerror(errno));
  where = realPath("/proc/self/fd/" + std::to_string(directory.get()));

  struct stat st {};
  check(fstat(directory.get(), &st), path);
  if (st.st_uid != geteuid()) {
    throw UsageError("--state " + path + ": belongs to uid " + std::to_string(st.st_uid) +
                     " and not to us");
  }
  if ((st.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    throw UsageError("--state " + path +
                     ": others can write it; `chmod go-w` it or choose another");
  }
  if (otherUids) {
    checkParents(where);
    if ((st.st_mode & 0111) != 0111) {
      check(fchmod(directory.get(), (st.st_mode & 0777) | 0111), "chmod of " + path);
    }
  }

  lock = Fd(check(openat(directory.get(), "lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600),
                  where + "/lock"));
  if (flock(lock.get(), LOCK_EX | LOCK_NB) < 0) {
    if (errno != EWOULDBLOCK) check(-1, where + "/lock");
    throw UsageError("--state " + path + ": another `cordon up` serves it" + holder(lock.get()));
  }
  std::string pid = std::to_string(getpid()) + "\n";
  check(ftruncate(lock.get(), 0), where + "/lock");
  check(pwrite(lock.get(), pid.data(), pid.size(), 0), where + "/lock");
}

Fd StateDirectory::bindAt(const char* name, int type, mode_t mode, gid_t group) const {
  std::string path = where + "/" + name;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    throw UsageError("--state " + where +
                     ": too long; the path of a unix socket below it may have " +
                     std::to_string(sizeof(address.sun_path) - 1) + " bytes");
  }
  memcpy(address.sun_path, path.c_str(), path.size() + 1);
  remove(name);
  Fd socket(check(::socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), "socket"));
  // Nobody may connect before mode and group are right.
  mode_t before = umask(0777);
  int bound = bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address));
  int error = errno;
  umask(before);
  errno = error;
  check(bound, "bind " + path);
  if (group != gid_t(-1)) {
    check(fchownat(directory.get(), name, uid_t(-1), group, AT_SYMLINK_NOFOLLOW), "chown " + path);
  }
  check(fchmodat(directory.get(), name, mode, 0), "chmod " + path);
  return socket;
}

Fd StateDirectory::listen(const char* name, mode_t mode, gid_t group) const {
  Fd socket = bindAt(name, SOCK_STREAM, mode, group);
  check(::listen(socket.get(), kBacklog), std::string("listen ") + name);
  return socket;
}

Fd StateDirectory::datagrams(const char* name, mode_t mode, gid_t group) const {
  Fd socket = bindAt(name, SOCK_DGRAM, mode, group);
  int on = 1;
  check(setsockopt(socket.get(), SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)), "SO_PASSCRED");
  return socket;
}

void StateDirectory::remove(const char* name) const {
  struct stat st {};
  if (fstatat(directory.get(), name, &st, AT_SYMLINK_NOFOLLOW) < 0) {
    if (errno == ENOENT) return;
    check(-1, where + "/" + name);
  }
  if (!S_ISSOCK(st.st_mode)) {
    throw UsageError(where + "/" + name + " is in the way, and it is no socket");
  }
  check(unlinkat(directory.get(), name, 0), "unlink " + where + "/" + name);
}

bool StateDirectory::waitForEarlierBroker(int seconds) const {
  Fd held(openat(directory.get(), "broker/lock", O_RDWR | O_NOFOLLOW | O_CLOEXEC));
  if (!held) return true;
  for (int tries = seconds * 20; tries > 0; --tries) {
    if (flock(held.get(), LOCK_EX | LOCK_NB) == 0) return true;
    poll(nullptr, 0, 50);
  }
  return false;
}

}  // namespace cordon::up
