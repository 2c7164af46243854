// Removing a directory tree whose contents somebody else chose, in slices.
//
// Works from directory fds and never follows a link. Subdirectories are first
// moved up to the top, so that a chain of ten thousand of them needs neither
// ten thousand fds nor a long path, and each step is short.
#pragma once
#include <kj/io.h>
#include <kj/time.h>

#include <cstdint>
#include <string>

namespace cordon::broker {

class TreeRemoval {
 public:
  // `path`: its parents are ours alone.
  explicit TreeRemoval(std::string path);

  enum class Progress : uint8_t { kMore, kGone, kStuck };
  // Works for about `budget`. kStuck: error() says why; may be called again.
  Progress step(kj::Duration budget);
  int error() const { return error_; }

 private:
  bool openTop();
  void removeEntry(const char* name);
  void emptyInto(int directory);

  std::string path_;
  kj::AutoCloseFd top_;
  uint64_t moved_ = 0;
  bool progressed_ = false;
  int error_ = 0;
};

}  // namespace cordon::broker
