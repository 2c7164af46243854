#include "copier/files.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace cordon::copier {

File::~File() {
  close();
}

void File::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

File& File::operator=(File&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

int createFile(int directory, const char* name) {
  open_how how = {};
  how.flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY;
  how.mode = 0600;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV;
  return static_cast<int>(syscall(SYS_openat2, directory, name, &how, sizeof(how)));
}

Listing::Listing(int directory) {
  int own = openBeneath(directory, ".", O_RDONLY | O_DIRECTORY);
  if (own < 0) failed(errno);
  dir_.reset(fdopendir(own));
  if (dir_ == nullptr) {
    int error = errno;
    close(own);
    failed(error);
  }
}

const char* Listing::next() {
  while (true) {
    errno = 0;
    dirent* entry = readdir(dir_.get());
    if (entry == nullptr) {
      if (errno != 0) failed(errno);
      return nullptr;
    }
    if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) return entry->d_name;
  }
}

void failed(int error) {
  throw Stop{error == ENOSPC || error == EDQUOT ? Outcome::kNoSpace : Outcome::kFailed, error};
}

Attributes attributesOf(const struct stat& status) {
  return {status.st_mode & 07777u, status.st_uid, status.st_gid, status.st_mtim.tv_sec,
          static_cast<uint32_t>(status.st_mtim.tv_nsec)};
}

}  // namespace cordon::copier
