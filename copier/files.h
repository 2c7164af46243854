// Files by descriptor, beneath it. Failures are thrown as Stop.
#pragma once
#include <dirent.h>
#include <sys/stat.h>

#include <memory>
#include <string>

#include "copier/archive.h"
#include "ipc/open_beneath.h"

namespace cordon::copier {

class File {
 public:
  explicit File(int fd = -1) : fd_(fd) {}
  ~File();
  File(File&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  File& operator=(File&& other) noexcept;
  int get() const { return fd_; }
  bool open() const { return fd_ >= 0; }
  void close();

 private:
  int fd_;
};

using ipc::Mounts;
using ipc::openBeneath;
// A new file of that name, for writing, 0600. -1 and errno when it can't be made.
int createFile(int directory, const char* name);

struct DirCloser {
  void operator()(DIR* dir) const { closedir(dir); }
};
// Its entries, read from the start with a descriptor of its own.
class Listing {
 public:
  explicit Listing(int directory);
  // Null at the end; not "." and "..".
  const char* next();

 private:
  std::unique_ptr<DIR, DirCloser> dir_;
};

[[noreturn]] void failed(int error);
Attributes attributesOf(const struct stat& status);

}  // namespace cordon::copier
