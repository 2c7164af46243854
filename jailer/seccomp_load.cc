#include "jailer/seccomp_load.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>

namespace cordon::jailer {

int loadFilter(int fd) {
  static sock_filter program[BPF_MAXINSNS];
  ssize_t size = pread(fd, program, sizeof(program), 0);
  if (size < 0) return errno;
  auto bytes = static_cast<size_t>(size);
  if (bytes == 0 || bytes % sizeof(sock_filter) != 0) return EMSGSIZE;
  sock_fprog filter = {static_cast<unsigned short>(bytes / sizeof(sock_filter)), program};
  return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter) == 0 ? 0 : errno;
}

}  // namespace cordon::jailer
