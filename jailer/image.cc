// The image as its sandbox sees it: owners, and where the root is writable an
// overlay over each directory that the image's tree is made of, all their upper
// layers on one tmpfs of a fixed size. Mounted by the host's root in namespaces of
// the host's: on 6.1 an overlay made in a user namespace can't remove a directory
// of its lower layer.
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <vector>

#include "jailer/mount_calls.h"
#include "jailer/steps.h"

namespace cordon::jailer {

namespace {

constexpr uint64_t kPlain = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV;

// A directory of the layers' tmpfs, by a name that is a letter and a number.
kj::AutoCloseFd makeDirectory(int scratch, char kind, uint32_t number) {
  std::string name = kind + std::to_string(number);
  require(Step::kMounts, mkdirat(scratch, name.c_str(), 0755), number);
  return openBeneath(scratch, name.c_str(), number);
}

// The overlay shows the upper directory's own owner and mode for its root.
void copyAttributes(int from, int scratch, uint32_t number) {
  std::string name = "u" + std::to_string(number);
  struct stat status;
  require(Step::kMounts, fstat(from, &status), number);
  require(Step::kMounts, fchownat(scratch, name.c_str(), status.st_uid, status.st_gid, 0), number);
  require(Step::kMounts, fchmodat(scratch, name.c_str(), status.st_mode & 07777, 0), number);
}

kj::AutoCloseFd overlayOver(int lower, int scratch, uint32_t number) {
  auto upper = makeDirectory(scratch, 'u', number);
  auto work = makeDirectory(scratch, 'w', number);
  copyAttributes(lower, scratch, number);
  // None of what would let a name or content of the upper layer point elsewhere
  // in the lower one.
  return NewFileSystem("overlay", number)
      .setPath("lowerdir", lower)
      .setPath("upperdir", upper)
      .setPath("workdir", work)
      .set("redirect_dir", "off")
      .set("metacopy", "off")
      .set("index", "off")
      .set("xino", "off")
      .mount(kPlain);
}

kj::AutoCloseFd layersTmpfs(JailSpec::Reader spec) {
  return NewFileSystem("tmpfs", 0)
      // Nobody has a name for it; who takes a snapshot has a descriptor, and is not
      // the host's root.
      .set("mode", "0711")
      .set("size", spec.getRootBytes())
      .set("nr_inodes", spec.getRootInodes())
      .mount(kPlain | MOUNT_ATTR_NOEXEC);
}

// Ids on its files become the sandbox's. Possible only while it is detached and
// no other mount's child.
void showOwners(int mount, Owners owners, const Prepared& prepared, uint32_t number) {
  if (owners == Owners::HOST) return;
  mount_attr attributes = {};
  attributes.attr_set = MOUNT_ATTR_IDMAP;
  attributes.userns_fd = static_cast<uint64_t>(prepared.user.get());
  if (mount_setattr(mount, "", AT_EMPTY_PATH, &attributes, sizeof(attributes)) == 0) return;
  // Of a file system that can't: its files are nobody's inside, which is less.
  bool less = errno == EINVAL && owners == Owners::OWN;
  if (!less) fail(Step::kOwners, errno, number);
}

bool isAsItIs(JailSpec::Reader spec) {
  if (spec.getRootBytes() != 0) return false;
  for (auto mount : spec.getImage()) {
    if (mount.getOwners() != Owners::HOST) return false;
  }
  return true;
}

void attachAt(const char* place, int mount) {
  require(Step::kMounts, move_mount(mount, "", AT_FDCWD, place, MOVE_MOUNT_F_EMPTY_PATH));
}

}  // namespace

void attachImage(JailSpec::Reader spec, const Prepared& prepared, RootLayers& layers) {
  // Attached first in any case, since 6.1 takes no mount into a tree that is still
  // detached.
  if (isAsItIs(spec)) return attachAt("/", kRootFd);
  // What the new root is made from must not lie under it: it would stay when the
  // old root is taken off.
  attachAt("/sys", kRootFd);
  bool writable = spec.getRootBytes() != 0;
  kj::AutoCloseFd scratch;
  if (writable) {
    scratch = layersTmpfs(spec);
    // An overlay wants its layers attached. This place goes with the old root.
    attach(scratch, openBeneath(kRootFd, "work", 0), 0);
  }
  auto image = spec.getImage();
  std::vector<kj::AutoCloseFd> parts;
  for (uint32_t i = 0; i < image.size(); ++i) {
    auto place = openBeneath(kRootFd, i == 0 ? "." : image[i].getWhere().cStr(), i);
    auto part = cloneMount(place, i);
    showOwners(part, image[i].getOwners(), prepared, i);
    if (writable && image[i].getDirectory()) {
      attach(part, place, i);
      part = overlayOver(part, scratch, i);
    }
    parts.push_back(kj::mv(part));
  }
  attachAt("/", parts[0]);
  for (uint32_t i = 1; i < parts.size(); ++i) {
    attach(parts[i], openBeneath(parts[0], image[i].getWhere().cStr(), i), i);
  }
  if (writable) {
    layers.lower = kj::AutoCloseFd(require(Step::kMounts, fcntl(kRootFd, F_DUPFD_CLOEXEC, 0)));
    layers.upper = kj::mv(scratch);
  }
  // From here on this is the root; the tree that it was made from goes with the
  // old one.
  require(Step::kMounts, dup3(parts[0], kRootFd, O_CLOEXEC));
}

}  // namespace cordon::jailer
