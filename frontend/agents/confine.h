// What cordon-agents gives up before it reads a client's first byte.
#pragma once
#include <cstddef>

#include "jailer/seccomp_profile.h"

namespace cordon::agents {

// The calls that it goes on making, with a reason each. No process is started,
// looked into or signalled, no program run, no file written, no socket made but
// the broker's.
jailer::Profile frontendCalls();

// No capability in any set, no_new_privs, no core dumps, not traceable by its
// own uid, as many descriptors as the hard limit allows, and a seccomp filter of
// frontendCalls(). Reads back what it set, and throws when something did not
// hold. Call it before the first thread. Returns how many calls pass.
size_t confine();

}  // namespace cordon::agents
