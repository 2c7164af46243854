#include "runtimes/directory_image.h"

#include <errno.h>
#include <fcntl.h>
#include <kj/debug.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <set>

#include "ipc/open_beneath.h"
#include "runtimes/oci/bundle.h"

namespace cordon::runtimes {

namespace {

constexpr size_t kMaxName = 255;

std::vector<std::string> componentsOf(const std::string& name) {
  std::vector<std::string> components(1);
  for (char c : name) {
    if (c == '/') {
      components.emplace_back();
    } else {
      components.back() += c;
    }
  }
  return components;
}

ImageRefusal refused(const std::string& name, const std::string& why) {
  return {rpc::Reason::IMAGE_REFUSED, name + ": " + why};
}

// Nobody but root gets through a directory with this mode.
bool isClosedToOthers(const struct stat& status) {
  return (status.st_mode & 011) == 0;
}

bool isSettled(const timespec& ctime) {
  constexpr int64_t kNanoseconds = 1'000'000'000;
  constexpr int64_t kTick = kNanoseconds / 10;
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return (now.tv_sec - ctime.tv_sec) * kNanoseconds + (now.tv_nsec - ctime.tv_nsec) > kTick;
}

}  // namespace

bool isImageName(const std::string& name) {
  if (name.empty() || name.size() > kMaxName) return false;
  for (char c : name) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return false;
  }
  for (const std::string& component : componentsOf(name)) {
    if (component.empty() || component == "." || component == "..") return false;
  }
  return true;
}

kj::OneOf<ImageDirectory, ImageRefusal> openImageDirectory(
    const std::vector<std::string>& imageDirs, const std::string& name) {
  for (const std::string& configured : imageDirs) {
    int raw = open(configured.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (raw < 0) continue;
    ImageDirectory image;
    image.root = kj::AutoCloseFd(raw);
    struct stat status;
    KJ_SYSCALL(fstat(image.root, &status), configured);
    std::vector<std::string> components = componentsOf(name);
    size_t next = 0;
    for (;; ++next) {
      if (!isRootsAlone(status.st_uid, status.st_mode)) {
        return refused(name, "a directory on the way to it is not root's alone to write");
      }
      if (isClosedToOthers(status)) image.strict = false;
      if (next == components.size()) break;
      int fd = ipc::openBeneath(image.root, components[next].c_str(), O_RDONLY | O_DIRECTORY);
      if (fd < 0 && errno == ENOENT) break;
      if (fd < 0) return refused(name, std::string("can't be opened: ") + strerror(errno));
      image.root = kj::AutoCloseFd(fd);
      KJ_SYSCALL(fstat(image.root, &status), name);
    }
    if (next != components.size()) continue;  // not in this one
    image.device = status.st_dev;
    image.inode = status.st_ino;
    image.ctimeSeconds = status.st_ctim.tv_sec;
    image.ctimeNanoseconds = status.st_ctim.tv_nsec;
    image.settled = isSettled(status.st_ctim);
    return kj::mv(image);
  }
  return ImageRefusal{rpc::Reason::UNKNOWN_IMAGE, "there is no image of this name"};
}

void buildDirectoryImage(Skeleton& skeleton, int root, const std::vector<TopEntry>& top,
                         int agent) {
  // Ours in every image: what the image has there is not shown.
  const std::set<std::string> ours = {"proc", "sys", "dev", "tmp", "work", ".cordon"};
  addMountPoints(skeleton);
  for (const TopEntry& entry : top) {
    if (ours.count(entry.name)) continue;
    if (entry.type == EntryType::kDirectory) skeleton.directory(entry.name);
    if (entry.type == EntryType::kFile) skeleton.file(entry.name, "");
    if (entry.type == EntryType::kSymlink) {
      char target[PATH_MAX];
      ssize_t length;
      KJ_SYSCALL(length = readlinkat(root, entry.name.c_str(), target, sizeof target), entry.name);
      skeleton.link(entry.name, std::string(target, static_cast<size_t>(length)));
    }
  }
  skeleton.seal();
  for (const TopEntry& entry : top) {
    if (ours.count(entry.name) || entry.type == EntryType::kSymlink) continue;
    int wanted = entry.type == EntryType::kDirectory ? O_DIRECTORY : 0;
    int source;
    KJ_SYSCALL(source = ipc::openBeneath(root, entry.name.c_str(), O_PATH | O_NOFOLLOW | wanted),
               entry.name);
    kj::AutoCloseFd owned(source);
    // Another one by that name was never walked: a fifo or a socket would be a
    // way out, whatever the mount's flags.
    struct stat status;
    KJ_SYSCALL(fstat(source, &status), entry.name);
    KJ_REQUIRE(status.st_ino == entry.inode, "changed since it was looked at", entry.name);
    skeleton.bind(owned, entry.name);
  }
  skeleton.bind(agent, kAgentPath + 1, false);
}

}  // namespace cordon::runtimes
