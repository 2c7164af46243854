// Removing a directory tree by directory fds: no path is resolved, no symlink
// followed, no mount crossed. Whatever wrote to it need not be trusted.
#pragma once
#include <kj/time.h>

#include <string>
#include <vector>

#include "broker/cgroups.h"

namespace cordon::runtimes {

// Removes `name` (one component) in the directory `parent`, whatever it is. Stops
// after `budget`, so that a huge tree doesn't hold up the loop; calling again
// goes on. Returns what is left: nothing when it is gone or never was, an item
// with EAGAIN when only the time ran out.
std::vector<broker::LeftOver> removeTree(int parent, const std::string& name,
                                         kj::Duration budget = 4 * kj::MILLISECONDS);

}  // namespace cordon::runtimes
