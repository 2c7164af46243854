#include "ipc/fdpass.h"

#include <kj/debug.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace cordon::ipc {

SendResult sendWithFds(int socket, kj::ArrayPtr<const kj::byte> data, kj::ArrayPtr<const int> fds) {
  KJ_REQUIRE(data.size() > 0, "descriptors need at least one byte to ride on");
  KJ_REQUIRE(fds.size() <= kMostFdsAtOnce);

  iovec io = {const_cast<kj::byte*>(data.begin()), data.size()};
  msghdr message = {};
  message.msg_iov = &io;
  message.msg_iovlen = 1;
  std::vector<char> control;
  if (fds.size() > 0) {
    control.resize(CMSG_SPACE(fds.size() * sizeof(int)));
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    memcpy(CMSG_DATA(header), fds.begin(), fds.size() * sizeof(int));
  }

  for (;;) {
    ssize_t sent = sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent >= 0) {
      // A stream socket may take a part; the descriptors went with it, so the
      // rest can't be retried by the caller as if nothing had happened.
      KJ_REQUIRE(static_cast<size_t>(sent) == data.size(), "short send with descriptors", sent);
      return SendResult::kSent;
    }
    int error = errno;
    switch (error) {
      case EINTR:
        continue;
      case EAGAIN:
#if EAGAIN != EWOULDBLOCK
      case EWOULDBLOCK:
#endif
      // Too many descriptors in flight for this user: they drain as peers read.
      case ETOOMANYREFS:
      case ENOBUFS:
      case ENOMEM:
        return SendResult::kWouldBlock;
      case EPIPE:
      case ECONNRESET:
      case ENOTCONN:
        return SendResult::kPeerGone;
      default:
        KJ_FAIL_SYSCALL("sendmsg", error);
    }
  }
}

kj::Maybe<Received> receiveWithFds(int socket, kj::ArrayPtr<kj::byte> buffer, size_t maxFds) {
  KJ_REQUIRE(maxFds <= kMostFdsAtOnce);
  iovec io = {buffer.begin(), buffer.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kMostFdsAtOnce * sizeof(int))];
  msghdr message = {};
  message.msg_iov = &io;
  message.msg_iovlen = 1;
  message.msg_control = control;
  // Room for one more than allowed, so that an excess is seen and closed here.
  message.msg_controllen = CMSG_SPACE((maxFds + 1) * sizeof(int));
  if (message.msg_controllen > sizeof(control)) message.msg_controllen = sizeof(control);

  ssize_t got;
  do {
    got = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got < 0) {
    int error = errno;
    if (error == EAGAIN || error == EWOULDBLOCK) return nullptr;
    // The peer closed with bytes of ours unread: its end is gone all the same.
    if (error == ECONNRESET) return Received{};
    KJ_FAIL_SYSCALL("recvmsg", error);
  }

  Received received;
  received.bytes = got;
  received.truncated = (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(fd));
      kj::AutoCloseFd owned(fd);
      if (received.fds.size() < maxFds) {
        received.fds.push_back(kj::mv(owned));
      } else {
        received.truncated = true;
      }
    }
  }
  return kj::mv(received);
}

void PassedFd::attachTo(msghdr& message, int fd) {
  message.msg_control = room;
  message.msg_controllen = sizeof(room);
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(fd));
  memcpy(CMSG_DATA(header), &fd, sizeof(fd));
}

SocketPair socketPair(int type) {
  int fds[2];
  KJ_SYSCALL(socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, fds));
  return {kj::AutoCloseFd(fds[0]), kj::AutoCloseFd(fds[1])};
}

}  // namespace cordon::ipc
