// The sandbox's root, by the new mount API alone: what is mounted is a file
// descriptor until it is in place, and every place is resolved beneath the root
// without following a link.
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "jailer/layers.h"
#include "jailer/mount_calls.h"
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
    for (auto& file : toSeal_) addAttributes(file, MOUNT_ATTR_RDONLY, number_);
    toSeal_.clear();
  }

 private:
  template <typename T>
  T must(T result) {
    return require(kBuild, result, number_);
  }

  kj::AutoCloseFd openPlace(const char* path) { return openBeneath(root_, path, number_); }

  // Nothing where there is no such path and the entry is optional.
  kj::AutoCloseFd openIfThere(Mount::Reader mount) {
    int error;
    auto place = tryOpenBeneath(root_, mount.getWhere().cStr(), error);
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

  static uint64_t attributesOf(Mount::Reader mount) {
    uint64_t flags = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV;
    if (mount.getNoExec()) flags |= MOUNT_ATTR_NOEXEC;
    return flags;
  }

  kj::AutoCloseFd makeFileSystem(const char* type, capnp::List<Option>::Reader options,
                                 uint64_t attributes) {
    NewFileSystem made(type, number_);
    for (auto option : options) {
      made.set(option.getKey().cStr(),
               option.getValue().size() == 0 ? nullptr : option.getValue().cStr());
    }
    return made.mount(attributes);
  }

  void addFileSystem(const char* type, Mount::Reader mount) {
    if (mount.getMake()) makeDirectory(mount.getWhere());
    auto place = openPlace(mount.getWhere().cStr());
    bool later = mount.getReadOnly() && mount.getKind() == MountKind::TMPFS;
    uint64_t attributes = attributesOf(mount);
    if (mount.getReadOnly() && !later) attributes |= MOUNT_ATTR_RDONLY;
    auto made = makeFileSystem(type, mount.getOptions(), attributes);
    attach(made, place, number_);
    if (later) toSeal_.push_back(kj::mv(made));
  }

  // Read-only: a device is written to all the same, and the host's node keeps its
  // times and its mode.
  static constexpr uint64_t kOfDevices = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC;

  // The host's own node, by a name that the spec's check knows.
  void addDevice(Mount::Reader mount) {
    std::string node = std::string("/") + mount.getWhere().cStr();
    kj::AutoCloseFd device(
        must(open_tree(AT_FDCWD, node.c_str(), OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC)));
    addAttributes(device, kOfDevices, number_);
    makeFile(mount.getWhere());
    attach(device, openPlace(mount.getWhere().cStr()), number_);
  }

  void addAgain(Mount::Reader mount) {
    auto place = openIfThere(mount);
    if (place.get() < 0) return;
    auto copy = cloneMount(place, number_);
    uint64_t attributes = attributesOf(mount);
    if (mount.getReadOnly()) attributes |= MOUNT_ATTR_RDONLY;
    addAttributes(copy, attributes, number_);
    attach(copy, place, number_);
  }

  void addMask(Mount::Reader mount) {
    auto place = openIfThere(mount);
    if (place.get() < 0) return;
    struct stat status;
    must(fstat(place, &status));
    if (S_ISDIR(status.st_mode)) return coverByEmptyDirectory(place);
    attach(emptyFile(), place, number_);
  }

  kj::AutoCloseFd emptyFile() {
    kj::AutoCloseFd null(
        must(open_tree(AT_FDCWD, "/dev/null", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC)));
    addAttributes(null, kOfDevices, number_);
    return null;
  }

  // Of one file system for all: the first is itself, the others are copies of it
  // in its place. Kernels before 6.15 copy nothing that is still detached.
  void coverByEmptyDirectory(int place) {
    if (empty_.get() >= 0) return attach(cloneMount(empty_, number_), place, number_);
    empty_ = makeFileSystem(
        "tmpfs", {}, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC);
    attach(empty_, place, number_);
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

void buildRoot(JailSpec::Reader spec, const Prepared& prepared) {
  // Nothing of ours reaches the host, and nothing that the host mounts from now
  // on reaches us.
  mount_attr attributes = {};
  attributes.propagation = MS_PRIVATE;
  require(kBuild, mount_setattr(AT_FDCWD, "/", AT_RECURSIVE, &attributes, sizeof(attributes)));
  RootLayers rootLayers;
  attachImage(spec, prepared, rootLayers);
  Root root(kRootFd), lower(rootLayers.lower.get());
  SnapshotLayers layers;
  uint32_t number = 0;
  bool masking = true;
  for (auto mount : spec.getMounts()) {
    masking = masking && mount.getKind() == MountKind::MASK;
    if (!masking) layers.take(rootLayers);
    root.add(mount, number);
    if (masking && rootLayers.lower.get() >= 0) lower.add(mount, number);
    ++number;
  }
  root.seal();
  if (spec.getProgram() != Program::AGENT) return;
  layers.take(rootLayers);
  layers.report(spec.getLayersWritable());
}

namespace {

constexpr auto kPivot = Step::kPivot;

uint64_t mountOf(const char* path) {
  struct statx status;
  require(kPivot, statx(AT_FDCWD, path, AT_NO_AUTOMOUNT, STATX_MNT_ID, &status));
  return status.stx_mnt_id;
}

}  // namespace

void enterRoot() {
  require(kPivot, fchdir(kRootFd));
  // The old root comes to lie over the new one, and is taken off.
  require(kPivot, syscall(SYS_pivot_root, ".", "."));
  require(kPivot, umount2(".", MNT_DETACH));
  require(kPivot, chdir("/"));
  // Something left on top of the root would be a way to it by "..".
  if (mountOf("/") != mountOf("/proc/..")) fail(kPivot, EXDEV);
}

}  // namespace cordon::jailer
