#include "copier/save.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <utility>

#include "copier/files.h"

namespace cordon::copier {

namespace {

class Saver {
 public:
  Saver(const Bounds& bounds, Writer& out, Report& report)
      : bounds_(bounds), out_(out), report_(report), chunk_(kChunk) {}

  // `lower` and `merged`: the same directory in the other views, or -1.
  void layer(Layer kind, const std::string& where, int top, int lower, int merged) {
    names_.clear();
    nameBytes_ = 0;
    path_.clear();
    inRoot_ = kind == Layer::kRoot;
    struct stat status = look(top);
    out_.put({Kind::kLayer, attributesOf(status), static_cast<uint64_t>(kind), "", where});
    count(top);
    directory(top, lower, merged, 1);
    out_.put({Kind::kLeave, {}, 0, "", ""});
  }

 private:
  static struct stat look(int fd) {
    struct stat status;
    if (fstat(fd, &status) < 0) failed(errno);
    return status;
  }

  void count(int fd) {
    if (flistxattr(fd, nullptr, 0) > 0) ++report_.withoutXattrs;
  }

  void directory(int top, int lower, int merged, uint32_t depth) {
    if (depth > bounds_.depth) throw Stop{Outcome::kTooLarge, 0, Bound::kDepth};
    if (lower >= 0) removed(lower, merged);
    Listing names(top);
    while (const char* name = names.next()) entry(top, name, lower, merged, depth);
  }

  void removed(int lower, int merged) {
    Listing names(lower);
    while (const char* name = names.next()) {
      struct stat status;
      if (fstatat(merged, name, &status, AT_SYMLINK_NOFOLLOW) == 0) continue;
      if (errno != ENOENT) failed(errno);
      out_.put({Kind::kGone, {}, 0, name, ""});
    }
  }

  void entry(int top, const std::string& name, int lower, int merged, uint32_t depth) {
    struct stat status;
    if (fstatat(top, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) < 0) changed();
    switch (status.st_mode & S_IFMT) {
      case S_IFDIR:
        return subdirectory(top, name, status, lower, merged, depth);
      case S_IFREG:
        return file(top, name, status);
      case S_IFLNK:
        return symlink(top, name, status);
      case S_IFIFO:
        return out_.put({Kind::kFifo, attributesOf(status), 0, name, ""});
      case S_IFSOCK:
        ++report_.skippedSockets;
        return;
      case S_IFCHR:
        // What overlayfs puts in the place of a removed name: removed() has it.
        // Elsewhere a program made it.
        if (inRoot_ && status.st_rdev == makedev(0, 0)) return;
        [[fallthrough]];
      default:
        ++report_.skippedDevices;
    }
  }

  // Of the same directory in another view; nothing where it is none there.
  static File counterpart(int view, const std::string& name) {
    if (view < 0) return File();
    File found(openBeneath(view, name.c_str(), O_RDONLY | O_DIRECTORY));
    // ELOOP: a link; EXDEV: somewhere else is mounted there.
    bool none = errno == ENOENT || errno == ENOTDIR || errno == ELOOP || errno == EXDEV;
    if (!found.open() && !none) failed(errno);
    return found;
  }

  void subdirectory(int top, const std::string& name, const struct stat& before, int lower,
                    int merged, uint32_t depth) {
    File child(openBeneath(top, name.c_str(), O_RDONLY | O_DIRECTORY));
    if (!child.open()) failed(errno);
    struct stat status = look(child.get());
    requireSame(before, status);
    File below = counterpart(lower, name);
    File shown = below.open() ? counterpart(merged, name) : File();
    if (below.open() && !shown.open()) changed();
    out_.put({Kind::kDirectory, attributesOf(status), 0, name, ""});
    count(child.get());
    path_.push_back(name);
    directory(child.get(), below.get(), shown.get(), depth + 1);
    path_.pop_back();
    out_.put({Kind::kLeave, {}, 0, "", ""});
  }

  void symlink(int top, const std::string& name, const struct stat& status) {
    char target[4096];
    ssize_t n = readlinkat(top, name.c_str(), target, sizeof(target));
    if (n <= 0) changed();
    if (static_cast<size_t>(n) >= sizeof(target)) failed(ENAMETOOLONG);
    out_.put({Kind::kSymlink, attributesOf(status), 0, name,
              std::string(target, static_cast<size_t>(n))});
  }

  void file(int top, const std::string& name, const struct stat& before) {
    if (before.st_nlink > 1 && link(name, before)) return;
    // Not one to wait for, whatever it has become meanwhile.
    File file(openBeneath(top, name.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY));
    if (!file.open()) failed(errno);
    struct stat status = look(file.get());
    requireSame(before, status);
    auto size = static_cast<uint64_t>(status.st_size);
    out_.put({Kind::kFile, attributesOf(status), size, name, ""});
    count(file.get());
    content(file.get(), size);
    out_.endFile(size);
  }

  // True: one of its names is in the archive already.
  bool link(const std::string& name, const struct stat& status) {
    auto [found, isNew] = names_.try_emplace({status.st_dev, status.st_ino});
    if (!isNew) {
      out_.put({Kind::kLink, {}, 0, name, found->second});
      return true;
    }
    std::string path;
    for (auto& part : path_) path += part + "/";
    path += name;
    nameBytes_ += path.size() + 128;
    if (nameBytes_ > bounds_.linkTableBytes) throw Stop{Outcome::kTooLarge, 0, Bound::kLinks};
    found->second = std::move(path);
    return false;
  }

  void content(int fd, uint64_t size) {
    off_t at = 0;
    while (static_cast<uint64_t>(at) < size) {
      off_t begin = lseek(fd, at, SEEK_DATA);
      if (begin < 0 && errno == ENXIO) return;  // a hole to the end
      if (begin < 0) failed(errno);
      if (static_cast<uint64_t>(begin) >= size) return;
      off_t end = lseek(fd, begin, SEEK_HOLE);
      if (end <= begin) changed();
      end = std::min(end, static_cast<off_t>(size));
      out_.extent(static_cast<uint64_t>(begin), static_cast<uint64_t>(end - begin));
      for (off_t offset = begin; offset < end;) {
        size_t part = std::min(kChunk, static_cast<size_t>(end - offset));
        ssize_t n = pread(fd, chunk_.data(), part, offset);
        if (n < 0) failed(errno);
        if (n == 0) changed();
        out_.bytes(chunk_.data(), static_cast<size_t>(n));
        offset += n;
      }
      at = end;
    }
  }

  [[noreturn]] static void changed() { throw Stop{Outcome::kChanged, errno}; }

  static void requireSame(const struct stat& a, const struct stat& b) {
    if (a.st_dev != b.st_dev || a.st_ino != b.st_ino || a.st_mode != b.st_mode) changed();
  }

  const Bounds& bounds_;
  Writer& out_;
  Report& report_;
  std::vector<char> chunk_;
  std::vector<std::string> path_;
  // Of files with several names: the first.
  std::map<std::pair<dev_t, ino_t>, std::string> names_;
  uint64_t nameBytes_ = 0;
  bool inRoot_ = false;
};

File openRoot(int view, const std::string& path) {
  File file(
      openBeneath(view, path.empty() ? "." : path.c_str(), O_RDONLY | O_DIRECTORY, Mounts::kAny));
  if (!file.open()) failed(errno);
  return file;
}

}  // namespace

void save(const Layers& layers, const std::vector<Root>& roots, const Bounds& bounds, Writer& out,
          Report& report) {
  Saver saver(bounds, out, report);
  for (auto& root : roots) {
    File upper = openRoot(layers.upper, "u" + std::to_string(root.number));
    File lower = openRoot(layers.lower, root.where), merged = openRoot(layers.merged, root.where);
    saver.layer(Layer::kRoot, root.where, upper.get(), lower.get(), merged.get());
  }
  File work = openRoot(layers.work, ""), tmp = openRoot(layers.tmp, "");
  saver.layer(Layer::kWork, "", work.get(), -1, -1);
  saver.layer(Layer::kTmp, "", tmp.get(), -1, -1);
}

}  // namespace cordon::copier
