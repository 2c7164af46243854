#include "vm_agent/scratch.h"

#include <dirent.h>
#include <fcntl.h>
#include <kj/common.h>
#include <kj/io.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cstring>
#include <vector>

namespace cordon::agent {

namespace {

constexpr int kMaxEntries = 512;
constexpr int kMaxLevels = 4;

bool before(const timespec& a, const timespec& b) {
  return a.tv_sec != b.tv_sec ? a.tv_sec < b.tv_sec : a.tv_nsec < b.tv_nsec;
}

class Search {
 public:
  Search(uint64_t bytes, timespec since) : bytes_(bytes), since_(since) {}

  // The tree below `directory` belongs to the program: nothing in it is opened
  // but directories, and a link is never followed.
  std::string walk(kj::AutoCloseFd directory, const std::string& path, int level) {
    DIR* stream = fdopendir(directory.get());
    if (stream == nullptr) return "";
    directory.release();
    KJ_DEFER(closedir(stream));
    std::vector<std::string> below;
    while (entries_ < kMaxEntries) {
      dirent* entry = readdir(stream);
      if (entry == nullptr) break;
      if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
      ++entries_;
      struct stat info;
      if (fstatat(dirfd(stream), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0) continue;
      // ctime, which a program can't set: a file that an earlier exec left at the
      // limit is none of this one's.
      if (S_ISREG(info.st_mode) && static_cast<uint64_t>(info.st_size) == bytes_ &&
          !before(info.st_ctim, since_)) {
        return path + "/" + entry->d_name;
      }
      if (S_ISDIR(info.st_mode) && level < kMaxLevels) below.push_back(entry->d_name);
    }
    for (auto& name : below) {
      if (entries_ >= kMaxEntries) break;
      int fd = openat(dirfd(stream), name.c_str(), kDirectory);
      if (fd < 0) continue;
      auto found = walk(kj::AutoCloseFd(fd), path + "/" + name, level + 1);
      if (!found.empty()) return found;
    }
    return "";
  }

  static constexpr int kDirectory = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK;

 private:
  uint64_t bytes_;
  timespec since_;
  int entries_ = 0;
};

}  // namespace

void reportScratch(const Config& config, guest::Exited::Builder exited) {
  auto list = exited.initScratch(static_cast<uint32_t>(config.scratch.size()));
  for (uint32_t i = 0; i < list.size(); ++i) {
    const auto& path = config.scratch[i];
    list[i].setPath(path.c_str());
    struct statvfs info;
    if (statvfs(path.c_str(), &info) != 0) continue;  // zeros: not known
    list[i].setTotalBytes(uint64_t{info.f_blocks} * info.f_frsize);
    list[i].setFreeBytes(uint64_t{info.f_bavail} * info.f_frsize);
    list[i].setTotalInodes(info.f_files);
    list[i].setFreeInodes(info.f_favail);
  }
}

std::string findFileOfSize(const std::string& root, uint64_t bytes, timespec since) {
  int fd = open(root.c_str(), Search::kDirectory);
  if (fd < 0) return "";
  return Search(bytes, since).walk(kj::AutoCloseFd(fd), root, 1);
}

}  // namespace cordon::agent
