// From a sandbox's layers to an archive.
//
// Nothing is taken for granted, although the sandbox is frozen: every name is
// opened beneath its directory without following a link or crossing a mount, and
// what was opened is looked at again.
//
// What was removed from the root is found by comparing: a name of the lower
// directory that the merged view lacks. (The marks of overlayfs for an emptied
// directory can't be seen in a user namespace.)
#pragma once
#include <string>
#include <vector>

#include "copier/archive.h"

namespace cordon::copier {

struct Root {
  uint32_t number;    // its upper layer is u<number>
  std::string where;  // in the root; "" = the root itself
};

struct Layers {
  int work, tmp;
  int merged = -1, lower = -1, upper = -1;
};

// Throws Stop.
void save(const Layers& layers, const std::vector<Root>& roots, const Bounds& bounds, Writer& out,
          Report& report);

}  // namespace cordon::copier
