// A directory stream with an owner.
#pragma once
#include <dirent.h>

#include <memory>

namespace cordon::runtimes {

struct CloseDirectory {
  void operator()(DIR* directory) const { closedir(directory); }
};
using OpenDirectory = std::unique_ptr<DIR, CloseDirectory>;

}  // namespace cordon::runtimes
