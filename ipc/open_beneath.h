// Opening by name below a directory that is held open, so that whoever can write
// there can't lead us elsewhere: nothing outside is reached and no link of any
// kind is followed.
#pragma once
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace cordon::ipc {

enum class Mounts : uint8_t {
  kOfDirectory,  // what is mounted below is refused (EXDEV)
  kAny,
};

// A descriptor, CLOEXEC besides `flags` (of open, none that creates), or -1 with
// errno.
inline int openBeneath(int directory, const char* path, int flags,
                       Mounts mounts = Mounts::kOfDirectory) {
  open_how how = {};
  how.flags = static_cast<uint64_t>(flags | O_CLOEXEC);
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
  if (mounts == Mounts::kOfDirectory) how.resolve |= RESOLVE_NO_XDEV;
  for (;;) {
    auto fd = static_cast<int>(syscall(SYS_openat2, directory, path, &how, sizeof(how)));
    if (fd >= 0 || errno != EINTR) return fd;
  }
}

}  // namespace cordon::ipc
