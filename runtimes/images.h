// Images: what the root file system of a sandbox is made of.
//
// `host-usr` is an allow-list view of this machine. Any other name is a
// directory beneath one that root's configuration lists (cordon up --images
// DIR), opened beneath it without following links or crossing mounts, owned by
// root, writable by nobody else, and walked once: a socket, device or fifo in
// it refuses it, and so does a symlinked /dev, /proc or /sys.
//
// "Writable by nobody else" holds for every directory and file of the tree,
// unless the tree's root or a directory above it (up to the configured one) can
// be entered by root alone (mode 0700): then nobody else reaches what is inside,
// and an image may have its own /tmp and its own users' files.
#pragma once
#include <kj/async.h>
#include <kj/timer.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtimes/runtime.h"

namespace cordon::runtimes {

struct ImageRefusal {
  rpc::Reason reason;  // unknownImage or imageRefused
  std::string detail;
};

class ImageStore {
 public:
  virtual ~ImageStore() noexcept(false) = default;
  // `workDir`: root-owned directory where skeletons are built (made when it is
  // missing). `imageDirs`: absolute directories from configuration; a missing
  // one is no fault here. `vmAgent`: the agent's file on the host, bound into
  // every skeleton as /.cordon/vm-agent. Must be called in the broker's own mount
  // namespace. Without root it opens all the same and resolve() refuses.
  // `timer` (of the loop's event port) is what a long walk yields to the loop by.
  static kj::Own<ImageStore> open(const std::string& workDir, std::vector<std::string> imageDirs,
                                  const std::string& vmAgent, kj::Timer& timer);
  // "" is host-usr. `own`: all files of the image show their owners inside, also
  // those of host-usr, of which what others can't read is then `closed`. The walk of a large tree
  // yields to the loop (at most 2 ms a turn); the answer is remembered by device, inode and ctime
  // of the root, once the root has not changed for a moment.
  virtual kj::Promise<kj::OneOf<std::shared_ptr<const Image>, ImageRefusal>> resolve(
      std::string name, bool own) = 0;
  // Unmounts and removes the skeletons.
  virtual void removeAll() = 0;
};

}  // namespace cordon::runtimes
