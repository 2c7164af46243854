// Mounts that nobody has a path to yet.
#pragma once
#include <kj/io.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace cordon::runtimes {

// An image with all that is bound beneath it, out of the broker's namespace. Throws
// (kj).
kj::AutoCloseFd detachedTree(const std::string& path);

// A new tmpfs with these options and MOUNT_ATTR_*. Throws (kj).
kj::AutoCloseFd detachedTmpfs(const std::vector<std::pair<const char*, std::string>>& options,
                              uint64_t attributes);

}  // namespace cordon::runtimes
