// The descendants of a process, for the one runtime without cgroups.
#pragma once
#include <sys/types.h>

#include <cstddef>

namespace cordon::broker {

// SIGKILLs every descendant of `root` (not itself), by pidfd with the parent
// checked again after it was opened, until a pass finds none or passes run out.
// Returns how many signals were sent. `root` must be our own unreaped child.
size_t killTree(pid_t root);

}  // namespace cordon::broker
