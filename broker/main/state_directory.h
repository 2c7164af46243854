// The directory that is this instance: its lock and its identity.
#pragma once
#include <kj/io.h>

#include <string>

namespace cordon::broker {

class StateDirectory {
 public:
  // Makes `path` (0700) when it is missing; refuses one that somebody else owns
  // or may write to, and one that another broker holds.
  explicit StateDirectory(const std::string& path);

  const std::string& path() const { return path_; }
  std::string records() const { return path_ + "/records"; }
  std::string snapshots() const { return path_ + "/snapshots"; }
  // 12 hex digits from the directory's device and inode: the same for every
  // broker of this state, another for every other.
  const std::string& instance() const { return instance_; }

 private:
  std::string path_;
  kj::AutoCloseFd lock_;
  std::string instance_;
};

}  // namespace cordon::broker
