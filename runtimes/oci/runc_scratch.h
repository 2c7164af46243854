// The root of a sandbox that runc makes, with /work and /tmp mounted in it by us, so
// that we have a descriptor of each for snapshots without ever entering the sandbox.
// (Named as binds in the bundle, runc 1.1 would have to open the sandbox's mount
// namespace, for which the broker lacks CAP_SYS_PTRACE.)
//
//   DIRECTORY/root   the image's tree and the two sized tmpfs, until runc has run
#pragma once
#include <string>

#include "runtimes/runtime.h"

namespace cordon::runtimes {

std::string scratchRoot(const std::string& directory);

// Detached mounts of the two, in the order of jailer::LayerFd; writable where the
// request will restore. Throws (kj): unmountScratch() removes what was mounted.
Layers mountScratch(const CreateRequest& request);

// What of it is mounted in DIRECTORY; the sandbox has its own. Idempotent.
void unmountScratch(const std::string& directory);

}  // namespace cordon::runtimes
