// The broker's own mount namespace, and in it the directory that sandboxes are
// built in. Only as root.
//
// Nothing that is mounted from here on is visible on the host, and all of it
// vanishes with the last process of the namespace. Mounts of the host still
// arrive (slave propagation), ours never leave.
//
//   ROOT/INSTANCE      private tmpfs, 0711: mapped uids may traverse, not list
//     programs/NAME    installProgram: 0111, on a read-only mount of its own
//
// The directory on the host below the tmpfs is per instance and empty: rmdir of
// a mount point detaches what is mounted there in every other namespace.
#pragma once
#include <kj/common.h>

#include <cstdint>
#include <string>

namespace cordon::broker {

class PrivateMounts {
 public:
  // Order in the process: before the first thread, before CgroupTree::open (its
  // descriptors must belong to mounts of this namespace), before hardenBroker.
  // `root` is /run/cordon; `instance` is one path component. A directory that an
  // earlier broker left is taken over. Throws (kj) when not root, or when ROOT
  // or ROOT/INSTANCE is a link or another's.
  PrivateMounts(const std::string& root, const std::string& instance,
                uint64_t sizeBytes = 256ull << 20);
  // remove(), with errors swallowed.
  ~PrivateMounts();
  KJ_DISALLOW_COPY(PrivateMounts);

  const std::string& path() const { return path_; }

  // Copies a program into the tmpfs so that nobody can read or change what runs
  // (root-owned, 0111, read-only mount) and returns its path. `name` is one path
  // component, once each.
  std::string installProgram(const std::string& source, const std::string& name);

  // Unmounts and removes the host's directory; also with sandboxes still there.
  // Returns errno, 0 = gone. Again is harmless.
  int remove();

 private:
  std::string path_;
  bool mounted_ = false;
};

}  // namespace cordon::broker
