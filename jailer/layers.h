// What snapshots are taken of: clones of what a sandbox can write, for the broker,
// who never looks into them and hands them to cordon-copier.
#pragma once
#include <kj/io.h>

#include "jailer/steps.h"

namespace cordon::jailer {

class SnapshotLayers {
 public:
  // Before anything but masks has been mounted in the root: what the image hides it
  // hides from whoever copies, too. Nothing where the root is read-only.
  void take(const RootLayers& root);
  // When the root is complete. `writable`: a snapshot is put into them first.
  void report(bool writable);

 private:
  kj::AutoCloseFd merged_, lower_, upper_;
};

}  // namespace cordon::jailer
