// What a program was left holding. It should be its three streams and nothing
// else: a directory leads out, a socket talks to somebody, a cgroup's file moves
// processes.
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "escape_suite/programs/program.h"

namespace cordon::escape_programs {
namespace {

struct Held {
  long long extra, directories, sockets, files, devices, other, climbed;
};

// How far `..` leads from a directory: to one with another /etc than ours?
bool leadsOut(int directory) {
  struct stat ours {};
  struct stat theirs {};
  int up = openat(directory, "../../../../../../../../..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (up < 0) return false;
  bool out = stat("/", &ours) == 0 && fstat(up, &theirs) == 0 &&
             (ours.st_dev != theirs.st_dev || ours.st_ino != theirs.st_ino);
  close(up);
  return out;
}

void examine(int fd, Held* held) {
  struct stat status {};
  if (fstat(fd, &status) < 0) return;
  if (fd > 2) held->extra++;
  switch (status.st_mode & S_IFMT) {
    case S_IFDIR:
      held->directories++;
      held->climbed += leadsOut(fd);
      break;
    case S_IFSOCK:
      held->sockets++;
      break;
    case S_IFREG:
      held->files++;
      break;
    case S_IFBLK:
      held->devices++;
      break;
    case S_IFCHR: {
      struct stat null {};
      bool isNull = stat("/dev/null", &null) == 0 && null.st_rdev == status.st_rdev;
      held->devices += !isNull;
      break;
    }
    case S_IFIFO:
      break;
    default:
      held->other++;
  }
}

}  // namespace

void inheritedFds(const Arguments&) {
  Held held{};
  // By number and not by /proc/self/fd, which may not be there.
  for (int fd = 0; fd < 65536; ++fd) {
    if (fcntl(fd, F_GETFD) >= 0) examine(fd, &held);
  }
  report({{"examined", 65536},
          {"extra", held.extra},
          {"directories", held.directories},
          {"climbed", held.climbed},
          {"sockets", held.sockets},
          {"files", held.files},
          {"devices", held.devices},
          {"other", held.other}});
}

}  // namespace cordon::escape_programs
