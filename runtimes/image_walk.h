// The check of a directory before it is an image: everything in it once.
#pragma once
#include <kj/async.h>
#include <kj/io.h>
#include <kj/timer.h>

#include <string>
#include <vector>

namespace cordon::runtimes {

enum class EntryType : uint8_t { kDirectory, kFile, kSymlink };

struct TopEntry {
  std::string name;
  EntryType type;
  uint64_t inode = 0;  // whoever opens it later checks that it is the same
};

struct WalkResult {
  std::string refusal;        // "" = acceptable; else which path, and why
  std::vector<TopEntry> top;  // the entries of the root
  // What others than its owner can't read (or, a directory, enter): paths from
  // the root, at most WalkLimits::closed. Not looked into.
  std::vector<std::string> closed;
  uint64_t entries = 0;
};

struct WalkLimits {
  uint64_t entries = 2'000'000;
  unsigned depth = 128;
  unsigned top = 512;
  unsigned closed = 0;  // 0: not looked for; more than that refuse the tree
  kj::Duration turn = 2 * kj::MILLISECONDS;
};

// Walks the tree of `root` (an O_DIRECTORY fd for reading) by directory fds: no
// path is resolved again, no link followed, no mount entered. Refused are
// sockets, devices and fifos, anything that is mounted inside, and at the top a
// /dev, /proc or /sys that is a symlink. With `strict` also directories and
// files that are not root's or that others may write.
//
// Works for at most `turn` at a time and lets the loop run in between.
kj::Promise<WalkResult> walkImage(int root, bool strict, kj::Timer& timer, WalkLimits limits = {});

// Of one status: is it root's, and nobody else's to write?
bool isRootsAlone(uint32_t uid, uint32_t mode);

}  // namespace cordon::runtimes
