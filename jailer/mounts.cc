// The sandbox's root, by the new mount API alone: what is mounted is a file
// descriptor until it is in place, and every place is resolved beneath the root
// without following a link.
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "jailer/steps.h"

namespace cordon::jailer {

namespace {

constexpr auto kBuild = Step::kMounts;

class Root {
 public:
  explicit Root(int root) : root_(root) {}

  // Of list entry `number`.
  void add(Mount::Reader mount, uint32_t number) {
    number_ = number;
    switch (mount.getKind()) {
      case MountKind::PROC:
        return addFileSystem("proc", mount);
      case MountKind::SYSFS:
        return addFileSystem("sysfs", mount);
      case MountKind::TMPFS:
        return addFileSystem("tmpfs", mount);
      case MountKind::DEVPTS:
        return addFileSystem("devpts", mount);
      case MountKind::DEVICE:
        return addDevice(mount);
      case MountKind::AGAIN:
        return addAgain(mount);
      case MountKind::MASK:
        return addMask(mount);
      case MountKind::LINK:
        return addLink(mount);
    }
  }

  // A tmpfs that things are made in can be closed only when all are.
  void seal() {
    for (auto& file : toSeal_) setAttributes(file, MOUNT_ATTR_RDONLY);
    toSeal_.clear();
  }

 private:
  template <typename T>
  T must(T result) {
    return require(kBuild, result, number_);
  }

  kj::AutoCloseFd open(const char* path, uint64_t flags, int& error) {
    open_how how = {};
    how.flags = flags | O_CLOEXEC;
    // Not NO_XDEV: the root is made of several mounts.
    how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
    auto fd = static_cast<int>(syscall(SYS_openat2, root_, path, &how, sizeof(how)));
    error = fd < 0 ? errno : 0;
    return fd < 0 ? kj::AutoCloseFd() : kj::AutoCloseFd(fd);
  }

  kj::AutoCloseFd openPlace(const char* path) {
    int error;
    auto place = open(path, O_PATH, error);
    if (error != 0) fail(kBuild, error, number_);
    return place;
  }

  // Nothing where there is no such path and the entry is optional.
  kj::AutoCloseFd openIfThere(Mount::Reader mount) {
    int error;
    auto place = open(mount.getWhere().cStr(), O_PATH, error);
    if (error != 0 && !(error == ENOENT && mount.getOptional())) fail(kBuild, error, number_);
    return place;
  }

  // The parent of `path` and its last part.
  kj::AutoCloseFd openParent(const std::string& path, std::string& last) {
    size_t slash = path.rfind('/');
    last = slash == std::string::npos ? path : path.substr(slash + 1);
    return openPlace(slash == std::string::npos ? "." : path.substr(0, slash).c_str());
  }

  void makeDirectory(const std::string& path) {
    std::string last;
    auto parent = openParent(path, last);
    must(mkdirat(parent, last.c_str(), 0755));
  }

  void makeFile(const std::string& path) {
    std::string last;
    auto parent = openParent(path, last);
    must(mknodat(parent, last.c_str(), S_IFREG | 0644, 0));
  }

  void setAttributes(int mount, uint64_t set) {
    mount_attr attributes = {};
    attributes.attr_set = set;
    must(mount_setattr(mount, "", AT_EMPTY_PATH, &attributes, sizeof(attributes)));
  }

  void attach(int mount, int place) {
    must(move_mount(mount, "", place, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH));
  }

  static uint64_t attributesOf(Mount::Reader mount) {
    uint64_t flags = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV;
    if (mount.getNoExec()) flags |= MOUNT_ATTR_NOEXEC;
    return flags;
  }

  kj::AutoCloseFd makeFileSystem(const char* type, capnp::List<Option>::Reader options,
                                 uint64_t attributes) {
    kj::AutoCloseFd context(must(fsopen(type, FSOPEN_CLOEXEC)));
    must(fsconfig(context, FSCONFIG_SET_STRING, "source", type, 0));
    for (auto option : options) {
      bool flag = option.getValue().size() == 0;
      must(fsconfig(context, flag ? FSCONFIG_SET_FLAG : FSCONFIG_SET_STRING, option.getKey().cStr(),
                    flag ? nullptr : option.getValue().cStr(), 0));
    }
    must(fsconfig(context, FSCONFIG_CMD_CREATE, nullptr, nullptr, 0));
    return kj::AutoCloseFd(
        must(fsmount(context, FSMOUNT_CLOEXEC, static_cast<unsigned>(attributes))));
  }

  void addFileSystem(const char* type, Mount::Reader mount) {
    if (mount.getMake()) makeDirectory(mount.getWhere());
    auto place = openPlace(mount.getWhere().cStr());
    bool later = mount.getReadOnly() && mount.getKind() == MountKind::TMPFS;
    uint64_t attributes = attributesOf(mount);
    if (mount.getReadOnly() && !later) attributes |= MOUNT_ATTR_RDONLY;
    auto made = makeFileSystem(type, mount.getOptions(), attributes);
    attach(made, place);
    if (later) toSeal_.push_back(kj::mv(made));
  }

  // The host's own node, by a name that the spec's check knows.
  void addDevice(Mount::Reader mount) {
    std::string node = std::string("/") + mount.getWhere().cStr();
    kj::AutoCloseFd device(
        must(open_tree(AT_FDCWD, node.c_str(), OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC)));
    setAttributes(device, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC);
    makeFile(mount.getWhere());
    attach(device, openPlace(mount.getWhere().cStr()));
  }

  void addAgain(Mount::Reader mount) {
    auto place = openIfThere(mount);
    if (place.get() < 0) return;
    kj::AutoCloseFd copy(
        must(open_tree(place, "", AT_EMPTY_PATH | OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC)));
    uint64_t attributes = attributesOf(mount);
    if (mount.getReadOnly()) attributes |= MOUNT_ATTR_RDONLY;
    setAttributes(copy, attributes);
    attach(copy, place);
  }

  void addMask(Mount::Reader mount) {
    auto place = openIfThere(mount);
    if (place.get() < 0) return;
    struct stat status;
    must(fstat(place, &status));
    attach(S_ISDIR(status.st_mode) ? emptyDirectory() : emptyFile(), place);
  }

  kj::AutoCloseFd emptyFile() {
    kj::AutoCloseFd null(
        must(open_tree(AT_FDCWD, "/dev/null", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC)));
    setAttributes(null, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC);
    return null;
  }

  // Of one file system for all.
  kj::AutoCloseFd emptyDirectory() {
    if (empty_.get() < 0) {
      empty_ = makeFileSystem(
          "tmpfs", {},
          MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC);
    }
    return kj::AutoCloseFd(
        must(open_tree(empty_, "", AT_EMPTY_PATH | OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC)));
  }

  void addLink(Mount::Reader mount) {
    std::string last;
    auto parent = openParent(mount.getWhere(), last);
    must(symlinkat(mount.getTarget().cStr(), parent, last.c_str()));
  }

  int root_;
  uint32_t number_ = 0;
  std::vector<kj::AutoCloseFd> toSeal_;
  kj::AutoCloseFd empty_;
};

}  // namespace

void buildRoot(JailSpec::Reader spec) {
  // Nothing of ours reaches the host, and nothing that the host mounts from now
  // on reaches us.
  mount_attr attributes = {};
  attributes.propagation = MS_PRIVATE;
  require(kBuild, mount_setattr(AT_FDCWD, "/", AT_RECURSIVE, &attributes, sizeof(attributes)));
  // Over the old root: attached first, since 6.1 takes no mount into a tree that
  // is still detached.
  require(kBuild, move_mount(kRootFd, "", AT_FDCWD, "/", MOVE_MOUNT_F_EMPTY_PATH));
  Root root(kRootFd);
  uint32_t number = 0;
  for (auto mount : spec.getMounts()) root.add(mount, number++);
  root.seal();
}

void enterRoot() {
  constexpr auto kPivot = Step::kPivot;
  require(kPivot, fchdir(kRootFd));
  // The old root comes to lie over the new one, and is taken off.
  require(kPivot, syscall(SYS_pivot_root, ".", "."));
  require(kPivot, umount2(".", MNT_DETACH));
  require(kPivot, chdir("/"));
}

}  // namespace cordon::jailer
