// The directory that becomes a sandbox's root: mount points, links and small
// files of our own, and bind mounts of everything else.
//
// Use in this order: directory(), file(), link() while it is a plain directory;
// seal(), which puts a read-only mount over it; bind(), which attaches sources.
#pragma once
#include <kj/io.h>

#include <string>
#include <vector>

#include "runtimes/runtime.h"

namespace cordon::runtimes {

class Skeleton {
 public:
  // Makes `name` in the directory `work` (an fd of `workPath`), which root owns.
  // Throws (kj) on every failure, as do the other functions.
  Skeleton(int work, const std::string& workPath, std::string name);
  // Detaches its mounts and removes the directory.
  ~Skeleton() noexcept(false);
  KJ_DISALLOW_COPY(Skeleton);

  const std::string& path() const { return path_; }

  // Paths are relative and of our own making ("etc/ssl/certs"); parents first.
  void directory(const std::string& path, mode_t mode = 0755);
  void file(const std::string& path, const std::string& content);
  void link(const std::string& path, const std::string& target);

  // `own`: see ImageMount.
  void seal(bool own = true);
  // `source`: an O_PATH fd of a directory or file; its mount is cloned without
  // what is mounted beneath it, read-only, nosuid and nodev. `path`: made before.
  void bind(int source, const std::string& path, bool own = true);

  const std::vector<ImageMount>& mounts() const { return mounts_; }

 private:
  kj::AutoCloseFd work_;  // of our own: an image may outlive the store
  std::string name_;
  std::string path_;
  kj::AutoCloseFd root_;
  bool mounted_ = false;
  std::vector<ImageMount> mounts_;
};

// The plain directories that every image has: /proc, /sys, /dev, /tmp, /work and
// the agent's mount point /.cordon/vm-agent.
void addMountPoints(Skeleton& skeleton);

}  // namespace cordon::runtimes
