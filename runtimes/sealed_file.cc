#include "runtimes/sealed_file.h"

#include <errno.h>
#include <fcntl.h>
#include <kj/debug.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace cordon::runtimes {

namespace {

constexpr unsigned kExec = 0x10;  // MFD_EXEC, from 6.3 on

int makeMemfd(const char* name, bool executable) {
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  if (!executable) return memfd_create(name, kFlags);
  int fd = memfd_create(name, kFlags | kExec);
  // An older kernel, where every memfd can be executed.
  if (fd < 0 && errno == EINVAL) fd = memfd_create(name, kFlags);
  return fd;
}

}  // namespace

kj::AutoCloseFd sealedFile(const char* name, kj::ArrayPtr<const kj::byte> bytes, mode_t mode) {
  int raw;
  KJ_SYSCALL(raw = makeMemfd(name, (mode & 0111) != 0), name);
  kj::AutoCloseFd file(raw);
  kj::FdOutputStream(raw).write(bytes.begin(), bytes.size());
  KJ_SYSCALL(fchmod(raw, mode), name);
  KJ_SYSCALL(fcntl(raw, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE),
             name);
  return file;
}

kj::AutoCloseFd sealedProgram(const char* name, const std::string& path) {
  constexpr size_t kMostBytes = 64 << 20;
  int raw;
  KJ_SYSCALL(raw = open(path.c_str(), O_RDONLY | O_CLOEXEC), path);
  kj::AutoCloseFd file(raw);
  return sealedFile(name, kj::FdInputStream(file.get()).readAllBytes(kMostBytes), 0111);
}

}  // namespace cordon::runtimes
