// The descendants of a process, where no cgroup holds them.
#pragma once
#include <sys/types.h>

#include <cstddef>

namespace cordon::broker {

// SIGKILLs every descendant of `root` (not itself), by pidfd with the parent
// checked again after it was opened, until a pass finds none or passes run out.
// Returns how many signals were sent. `root` must be
// an unreaped child of ours, or ourselves.
size_t killTree(pid_t root);

}  // namespace cordon::broker
