// What cordon-agents gives up before it reads a client's first byte.
#pragma once

namespace cordon::agents {

// No capability in any set, no_new_privs, no core dumps, not traceable by its
// own uid, as many descriptors as the hard limit allows. Reads back what it
// set, and throws when something did not hold. Two seccomp filters: the
// allow-list of workloads, and no new process and no look into another. Call it
// before the first thread.
void confine();

}  // namespace cordon::agents
