// A directory of this process's own: made where it is missing, opened without
// following a link, and refused when it is another's or others can write to it.
#pragma once
#include <kj/io.h>
#include <sys/types.h>

#include <string>

namespace cordon::broker {

// `path` is absolute; its parent is made too (0755). Throws (kj) with a sentence.
kj::AutoCloseFd openPrivateDirectory(const std::string& path, mode_t mode);

}  // namespace cordon::broker
