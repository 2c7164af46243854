#include "runtimes/image_walk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <kj/debug.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <optional>

#include "ipc/open_beneath.h"
#include "runtimes/open_directory.h"

namespace cordon::runtimes {

namespace {

using Clock = std::chrono::steady_clock;

struct Level {
  OpenDirectory directory;
  size_t pathBytes;  // of path_ before this level's name
};

std::optional<EntryType> acceptableType(uint32_t mode) {
  switch (mode & S_IFMT) {
    case S_IFDIR:
      return EntryType::kDirectory;
    case S_IFREG:
      return EntryType::kFile;
    case S_IFLNK:
      return EntryType::kSymlink;
    default:
      return std::nullopt;
  }
}

bool isClosed(uint32_t mode) {
  uint32_t needed = S_ISDIR(mode) ? S_IROTH | S_IXOTH : S_IROTH;
  return (mode & needed) != needed;
}

// One walk. Kept on the heap by its promise.
class Walk {
 public:
  Walk(int root, bool strict, kj::Timer& timer, WalkLimits limits)
      : root_(root), strict_(strict), timer_(timer), limits_(limits) {}
  KJ_DISALLOW_COPY(Walk);

  kj::Promise<WalkResult> run() {
    if (!begin()) return kj::mv(result_);
    return turn();
  }

 private:
  bool begin() {
    struct statx status;
    if (!look(root_, "", AT_EMPTY_PATH, status)) return false;
    mountId_ = status.stx_mnt_id;
    if (strict_ && !isRootsAlone(status.stx_uid, status.stx_mode)) {
      return refuse("is not root's alone to write");
    }
    return enter(root_, ".", status.stx_ino);
  }

  kj::Promise<WalkResult> turn() {
    Clock::time_point end =
        Clock::now() + std::chrono::microseconds(limits_.turn / kj::MICROSECONDS);
    while (!levels_.empty()) {
      // The clock costs as much as an entry: not asked every time.
      for (int i = 0; i < 16 && !levels_.empty(); ++i) {
        if (!step()) return kj::mv(result_);
      }
      // Through the timer and not evalLater: the loop looks at its fds only when
      // no event is queued.
      if (Clock::now() > end) {
        return timer_.afterDelay(0 * kj::SECONDS).then([this]() { return turn(); });
      }
    }
    return kj::mv(result_);
  }

  // One entry. False: refused.
  bool step() {
    Level& level = levels_.back();
    errno = 0;
    const dirent* entry = readdir(level.directory.get());
    if (entry == nullptr) {
      if (errno != 0) return refuse(strerror(errno));
      path_.resize(level.pathBytes);
      levels_.pop_back();
      return true;
    }
    if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) return true;
    return visit(dirfd(level.directory.get()), entry->d_name);
  }

  bool visit(int parent, const std::string& name) {
    size_t pathBytes = path_.size();
    path_ += "/" + name;
    if (++result_.entries > limits_.entries) return refuse("there are too many files");
    struct statx status;
    if (!look(parent, name.c_str(), AT_SYMLINK_NOFOLLOW, status)) return false;
    if (status.stx_mnt_id != mountId_) return refuse("another file system is mounted there");
    std::optional<EntryType> type = acceptableType(status.stx_mode);
    if (!type) return refuse("is a socket, device or fifo");
    // A symlink's own mode means nothing; who may replace it is its directory's.
    if (strict_ && *type != EntryType::kSymlink && !isRootsAlone(status.stx_uid, status.stx_mode)) {
      return refuse("is not root's alone to write (or make the image's directory mode 0700)");
    }
    if (levels_.size() == 1 && !visitTop(name, *type, status.stx_ino)) return false;
    bool closed = limits_.closed > 0 && *type != EntryType::kSymlink && isClosed(status.stx_mode);
    if (closed && !visitClosed()) return false;
    if (*type == EntryType::kDirectory && !closed) {
      if (!enter(parent, name, status.stx_ino)) return false;
      levels_.back().pathBytes = pathBytes;
      return true;
    }
    path_.resize(pathBytes);
    return true;
  }

  bool visitClosed() {
    if (result_.closed.size() >= limits_.closed) {
      return refuse("and many others can't be read by everyone");
    }
    result_.closed.push_back(path_.substr(1));
    return true;
  }

  bool visitTop(const std::string& name, EntryType type, uint64_t inode) {
    bool special = name == "dev" || name == "proc" || name == "sys";
    if (special && type == EntryType::kSymlink) return refuse("is a symbolic link");
    if (result_.top.size() >= limits_.top) return refuse("has too many siblings at the top");
    result_.top.push_back({name, type, inode});
    return true;
  }

  bool look(int parent, const char* name, int flags, struct statx& status) {
    constexpr unsigned kWanted = STATX_TYPE | STATX_MODE | STATX_UID | STATX_INO | STATX_MNT_ID;
    if (statx(parent, name, flags | AT_NO_AUTOMOUNT, kWanted, &status) != 0) {
      return refuse(strerror(errno));
    }
    if ((status.stx_mask & STATX_MNT_ID) == 0) return refuse("this kernel tells no mount ids");
    return true;
  }

  // The one that was looked at, which has this inode, and no other.
  bool enter(int parent, const std::string& name, uint64_t inode) {
    if (levels_.size() >= limits_.depth) return refuse("is nested too deeply");
    int fd = ipc::openBeneath(parent, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    if (fd < 0) return refuse(strerror(errno));
    struct stat opened;
    if (fstat(fd, &opened) != 0 || opened.st_ino != inode) {
      close(fd);
      return refuse("is changed while it is looked at");
    }
    DIR* directory = fdopendir(fd);
    if (directory == nullptr) {
      int error = errno;
      close(fd);
      return refuse(strerror(error));
    }
    levels_.push_back({OpenDirectory(directory), path_.size()});
    return true;
  }

  bool refuse(const char* why) {
    result_.refusal = (path_.empty() ? std::string("/") : path_) + ": " + why;
    levels_.clear();
    return false;
  }

  int root_;
  bool strict_;
  kj::Timer& timer_;
  WalkLimits limits_;
  uint64_t mountId_ = 0;
  std::string path_;
  std::vector<Level> levels_;
  WalkResult result_;
};

}  // namespace

bool isRootsAlone(uint32_t uid, uint32_t mode) {
  return uid == 0 && (mode & 022) == 0;
}

kj::Promise<WalkResult> walkImage(int root, bool strict, kj::Timer& timer, WalkLimits limits) {
  auto walk = kj::heap<Walk>(root, strict, timer, limits);
  auto promise = walk->run();
  return promise.attach(kj::mv(walk));
}

}  // namespace cordon::runtimes
