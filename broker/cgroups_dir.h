// A cgroup directory held by descriptor: everything is done relative to it, with
// openat2 beneath it and without following links, so that no path is walked
// twice and none leads out of the subtree.
#pragma once
#include <kj/common.h>
#include <kj/io.h>
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "broker/cgroups.h"

namespace cordon::broker {

class CgroupDir {
 public:
  // `label`: how messages and receipts name it, e.g. "memory:/cordon/ab/sb-x".
  CgroupDir(kj::AutoCloseFd fd, std::string label) : fd_(kj::mv(fd)), label_(std::move(label)) {}
  CgroupDir(CgroupDir&&) = default;
  CgroupDir& operator=(CgroupDir&&) = default;
  KJ_DISALLOW_COPY(CgroupDir);

  int fd() const { return fd_.get(); }
  const std::string& label() const { return label_; }

  // A directory straight below. Null when it does not exist.
  kj::Maybe<CgroupDir> child(const std::string& name) const;
  // mkdir and open; one that is there already must be ours. Throws (kj).
  CgroupDir makeChild(const std::string& name) const;
  // mkdir of what must not be there yet, and open. Null with `error` set.
  kj::Maybe<CgroupDir> makeNewChild(const std::string& name, int& error) const;
  // Its own subdirectories (at most 4096).
  std::vector<std::string> children() const;
  // rmdir of a child; errno, 0 = gone (also when it was not there).
  int removeChild(const std::string& name) const;

  bool has(const char* file) const;
  // Null when the file does not exist or the cgroup is being removed.
  kj::Maybe<kj::AutoCloseFd> openFile(const char* file, int flags) const;
  kj::Maybe<std::string> read(const char* file) const;
  // One write; errno, 0 = written.
  int write(const char* file, const std::string& text) const;
  // The processes in it (not below), as this process sees their numbers.
  std::vector<pid_t> processes() const;

 private:
  kj::AutoCloseFd fd_;
  std::string label_;
};

// An absolute path of plain components ("/cordon", "/a.slice/cordon").
bool isCgroupPath(const std::string& path);
// One component: letters, digits, '-', '_', '.', at most 64, no leading dot.
bool isCgroupName(const std::string& name);

// Opens `path` (as isCgroupPath) below `root`; null when it is not there.
kj::Maybe<CgroupDir> openBelow(const CgroupDir& root, const std::string& path);
// The same, making what is missing. Throws (kj, with errno).
CgroupDir makeBelow(const CgroupDir& root, const std::string& path);
// Calls `make` again (a few times) when it throws: BASE is shared, and another
// instance that ends may remove it between two steps.
void retryWhileRemoved(const std::function<void()>& make);

enum class ReadBack : uint8_t {
  kExact,
  kPages,  // the kernel may have rounded down to a whole page
};
// Writes a number and reads it back. Null when it holds.
kj::Maybe<LimitNotApplied> applyLimit(const CgroupDir& dir, const char* file, uint64_t value,
                                      ReadBack readBack = ReadBack::kExact);
// The same for a file whose text is not one number; compared without the final
// newline.
kj::Maybe<LimitNotApplied> applyText(const CgroupDir& dir, const char* file,
                                     const std::string& text);

}  // namespace cordon::broker
