#include "runtimes/remove_tree.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <kj/io.h>
#include <stdio.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <memory>

#include "ipc/open_beneath.h"
#include "runtimes/open_directory.h"

namespace cordon::runtimes {

namespace {

using Clock = std::chrono::steady_clock;

// A program can nest directories as deep as it likes, and each level of ours
// costs an fd: deeper ones are moved up and removed from there.
constexpr int kMaxDepth = 32;

int openDirectoryBeneath(int parent, const char* name) {
  return ipc::openBeneath(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
}

class TreeRemover {
 public:
  TreeRemover(int top, Clock::time_point deadline) : top_(top), deadline_(deadline) {}

  // errno, or 0.
  int remove(int directory, const char* name, int depth) {
    if (unlinkat(directory, name, 0) == 0 || errno == ENOENT) return 0;
    // Linux says EISDIR, POSIX EPERM; what is neither a directory nor removable
    // shows below.
    if (errno != EISDIR && errno != EPERM) return errno;
    if (depth > kMaxDepth) return moveUp(directory, name);
    int error = empty(directory, name, depth);
    if (error != 0) return error;
    return unlinkat(directory, name, AT_REMOVEDIR) == 0 || errno == ENOENT ? 0 : errno;
  }

  bool movedSomething() const { return moved_; }

 private:
  int empty(int parent, const char* name, int depth) {
    int fd = openDirectoryBeneath(parent, name);
    // A directory that its owner closed to itself does not stop root; for
    // everybody else it is opened up.
    if (fd < 0 && errno == EACCES && fchmodat(parent, name, 0700, AT_SYMLINK_NOFOLLOW) == 0) {
      fd = openDirectoryBeneath(parent, name);
    }
    if (fd < 0) return errno;
    OpenDirectory directory(fdopendir(fd));
    if (directory == nullptr) {
      int error = errno;
      close(fd);
      return error;
    }
    int firstError = 0;
    fchmod(fd, 0700);  // to be written to, likewise
    while (const dirent* entry = readdir(directory.get())) {
      std::string child = entry->d_name;
      if (child == "." || child == "..") continue;
      if (Clock::now() > deadline_) return EAGAIN;
      int error = remove(fd, child.c_str(), depth + 1);
      if (error == EAGAIN) return error;
      if (firstError == 0) firstError = error;
    }
    return firstError;
  }

  // Within one file system. The name is random: the tree's writer must not be
  // able to have it already.
  int moveUp(int directory, const char* name) {
    uint64_t random = 0;
    if (getrandom(&random, sizeof random, 0) != sizeof random) return EAGAIN;
    std::string target = ".cordon-deep-" + std::to_string(random);
    if (renameat2(directory, name, top_, target.c_str(), RENAME_NOREPLACE) != 0) return errno;
    moved_ = true;
    return 0;
  }

  int top_;  // the tree's own directory, -1 when it is none
  Clock::time_point deadline_;
  bool moved_ = false;
};

}  // namespace

std::vector<broker::LeftOver> removeTree(int parent, const std::string& name, kj::Duration budget) {
  if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos) {
    return {{"directory", name, EINVAL}};
  }
  Clock::time_point deadline = Clock::now() + std::chrono::microseconds(budget / kj::MICROSECONDS);
  int error;
  bool again;
  do {
    kj::AutoCloseFd top(openDirectoryBeneath(parent, name.c_str()));
    TreeRemover remover(top.get(), deadline);
    error = remover.remove(parent, name.c_str(), 0);
    again = error == ENOTEMPTY && remover.movedSomething();
  } while (again && Clock::now() < deadline);
  if (again) error = EAGAIN;
  if (error == 0) return {};
  return {{"directory", name, error}};
}

}  // namespace cordon::runtimes
