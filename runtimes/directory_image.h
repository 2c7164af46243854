// A directory of the host as an image.
#pragma once
#include <kj/common.h>
#include <kj/io.h>

#include <cstdint>
#include <string>
#include <vector>

#include "runtimes/image_walk.h"
#include "runtimes/images.h"
#include "runtimes/skeleton.h"

namespace cordon::runtimes {

struct ImageDirectory {
  kj::AutoCloseFd root;  // O_DIRECTORY, for reading
  bool strict = true;    // others could reach what is inside (images.h)
  uint64_t device = 0, inode = 0;
  int64_t ctimeSeconds = 0, ctimeNanoseconds = 0;
  // The root's ctime is old enough that another change would move it: the
  // kernel's clock for it ticks only every few milliseconds.
  bool settled = false;
};

// A relative path of plain components, at most 255 bytes.
bool isImageName(const std::string& name);

// Opens `name` beneath the first of `imageDirs` that has it: no link followed, no
// mount crossed, every directory from the configured one to the image root's alone.
kj::OneOf<ImageDirectory, ImageRefusal> openImageDirectory(
    const std::vector<std::string>& imageDirs, const std::string& name);

// Fills and seals an empty skeleton with what the walk found at the top. Throws (kj).
void buildDirectoryImage(Skeleton& skeleton, int root, const std::vector<TopEntry>& top, int agent);

}  // namespace cordon::runtimes
