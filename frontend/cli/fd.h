// A file descriptor that closes itself, and system calls that keep errno.
#pragma once
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

namespace cordon::cli {

class Fd {
 public:
  Fd() = default;
  explicit Fd(int value) : fd(value) {}
  Fd(Fd&& other) noexcept : fd(std::exchange(other.fd, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd, other.fd);
    return *this;
  }
  ~Fd() {
    if (fd >= 0) close(fd);
  }
  int get() const { return fd; }
  explicit operator bool() const { return fd >= 0; }

 private:
  int fd = -1;
};

// The result of a system call that must not fail; `what` says what was tried.
template <class Result>
Result check(Result result, const std::string& what) {
  if (result < 0) throw std::system_error(errno, std::system_category(), what);
  return result;
}

struct Pipe {
  Fd read, write;
};

inline Pipe makePipe() {
  int ends[2];
  check(pipe2(ends, O_CLOEXEC), "pipe2");
  return {Fd(ends[0]), Fd(ends[1])};
}

}  // namespace cordon::cli
