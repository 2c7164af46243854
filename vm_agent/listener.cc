#include "vm_agent/listener.h"

#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "ipc/fdpass.h"

namespace cordon::agent {

namespace {

int sendListener(int socket, int listener) {
  char byte = 0;
  iovec data = {&byte, 1};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  ipc::PassedFd beside;
  beside.attachTo(message, listener);
  return sendmsg(socket, &message, MSG_NOSIGNAL) == 1 ? 0 : errno;
}

[[noreturn]] void beCourier(int socket, int order, int child) {
  // The order's other end is in the same table, so it has no end of file: the
  // child's own end is what tells that no order comes.
  pollfd fds[] = {{order, POLLIN, 0}, {child, POLLIN, 0}};
  while (poll(fds, 2, -1) < 0 && errno == EINTR) {
  }
  uint64_t listener = 0;
  bool ordered = (fds[0].revents & POLLIN) != 0 &&
                 read(order, &listener, sizeof(listener)) == sizeof(listener);
  _exit(ordered ? sendListener(socket, static_cast<int>(listener)) : ESRCH);
}

}  // namespace

int Courier::start(int socket) {
  auto child = static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0));
  if (child < 0) return errno;
  order_ = eventfd(0, EFD_CLOEXEC);
  if (order_ < 0) return errno;
  // No signal at its end: the program must not find one pending.
  pid_ = static_cast<pid_t>(syscall(SYS_clone, CLONE_FILES, 0, 0, 0, 0));
  if (pid_ == 0) beCourier(socket, order_, child);
  return pid_ < 0 ? errno : 0;
}

int Courier::deliver(int listener) const {
  auto number = static_cast<uint64_t>(listener);
  if (write(order_, &number, sizeof(number)) != sizeof(number)) return errno;
  int status = 0;
  // Waited for, or the program would find a child that it never had, and
  // descriptors would stay open past the exec.
  while (wait4(pid_, &status, __WALL, nullptr) < 0) {
    if (errno != EINTR) return errno;
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : ECHILD;
}

}  // namespace cordon::agent
