// From an archive to the layers of a new sandbox, in which nothing runs yet.
//
// The root is written through the sandbox's own view, so that overlayfs itself
// does what it does for a program: removed names, replaced and emptied
// directories need no knowledge of its format.
#pragma once
#include "copier/archive.h"
#include "copier/save.h"

namespace cordon::copier {

// The archive is as it was recorded: length and hash. Throws Stop(kDamaged).
void verify(int archive, uint64_t bytes, const uint8_t (&sha256)[32]);

// Throws Stop.
void restore(int archive, const Layers& layers, const Bounds& bounds, Report& report);

}  // namespace cordon::copier
