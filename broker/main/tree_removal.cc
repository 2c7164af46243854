#include "broker/main/tree_removal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <kj/debug.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <memory>
#include <string>

namespace cordon::broker {

namespace {
constexpr int kDirectoryFlags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;

int64_t nowNs() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

class Listing {
 public:
  explicit Listing(int directory) {
    int copy = openat(directory, ".", kDirectoryFlags);
    if (copy < 0) return;
    dir_.reset(fdopendir(copy));
    if (!dir_) close(copy);
  }
  bool ok() const { return dir_ != nullptr; }
  // Null at the end.
  const char* next() {
    for (;;) {
      dirent* entry = readdir(dir_.get());
      if (entry == nullptr) return nullptr;
      if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
        return entry->d_name;
      }
    }
  }

 private:
  struct Close {
    void operator()(DIR* d) const { closedir(d); }
  };
  std::unique_ptr<DIR, Close> dir_;
};
}  // namespace

TreeRemoval::TreeRemoval(std::string path) : path_(std::move(path)) {}

bool TreeRemoval::openTop() {
  if (top_.get() >= 0) return true;
  int fd = open(path_.c_str(), kDirectoryFlags);
  if (fd < 0) {
    error_ = errno;
    return false;
  }
  top_ = kj::AutoCloseFd(fd);
  return true;
}

TreeRemoval::Progress TreeRemoval::step(kj::Duration budget) {
  error_ = 0;
  progressed_ = false;
  if (!openTop()) return error_ == ENOENT ? Progress::kGone : Progress::kStuck;
  int64_t until = nowNs() + budget / kj::NANOSECONDS;
  Listing listing(top_.get());
  if (!listing.ok()) {
    error_ = errno;
    return Progress::kStuck;
  }
  while (const char* name = listing.next()) {
    removeEntry(name);
    if (nowNs() > until) return progressed_ ? Progress::kMore : Progress::kStuck;
  }
  if (rmdir(path_.c_str()) == 0 || errno == ENOENT) {
    top_ = nullptr;
    return Progress::kGone;
  }
  // What was moved up during this pass may not have been listed.
  if (errno == ENOTEMPTY && progressed_) return Progress::kMore;
  if (error_ == 0) error_ = errno;
  return Progress::kStuck;
}

void TreeRemoval::removeEntry(const char* name) {
  if (unlinkat(top_.get(), name, 0) == 0) {
    progressed_ = true;
    return;
  }
  int notAFile = errno;
  if (notAFile == ENOENT) return;
  int fd = openat(top_.get(), name, kDirectoryFlags);
  if (fd < 0 && errno == EACCES && fchmodat(top_.get(), name, 0700, AT_SYMLINK_NOFOLLOW) == 0) {
    fd = openat(top_.get(), name, kDirectoryFlags);
  }
  if (fd < 0) {
    error_ = errno == ENOTDIR ? notAFile : errno;
    return;
  }
  kj::AutoCloseFd directory(fd);
  emptyInto(directory.get());
  if (unlinkat(top_.get(), name, AT_REMOVEDIR) == 0) {
    progressed_ = true;
  } else if (errno != ENOTEMPTY && errno != ENOENT) {
    error_ = errno;
  }
}

// A bounded number of entries: a directory of a million is come back to.
void TreeRemoval::emptyInto(int directory) {
  constexpr int kEntriesAtOnce = 64;
  // Its owner may have taken the right to write; moving a directory needs it.
  if (fchmod(directory, 0700) < 0) error_ = errno;
  Listing listing(directory);
  if (!listing.ok()) {
    error_ = errno;
    return;
  }
  for (int n = 0; n < kEntriesAtOnce; ++n) {
    const char* name = listing.next();
    if (name == nullptr) return;
    if (unlinkat(directory, name, 0) == 0) {
      progressed_ = true;
      continue;
    }
    int notAFile = errno;
    if (notAFile == ENOENT) continue;
    fchmodat(directory, name, 0700, AT_SYMLINK_NOFOLLOW);
    std::string up = ".cordon-removing-" + std::to_string(++moved_);
    if (renameat(directory, name, top_.get(), up.c_str()) == 0) {
      progressed_ = true;
    } else if (errno != ENOENT) {
      error_ = errno == ENOTDIR ? notAFile : errno;
    }
  }
}

}  // namespace cordon::broker
