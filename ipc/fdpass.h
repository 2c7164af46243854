// Passing file descriptors over unix sockets, and owning them.
#pragma once
#include <kj/array.h>
#include <kj/io.h>
#include <sys/socket.h>
#include <sys/types.h>

#include <cstddef>
#include <vector>

namespace cordon::ipc {

// The most that one message can bring (the kernel's SCM_MAX_FD).
constexpr size_t kMostFdsAtOnce = 253;

struct Received {
  ssize_t bytes = 0;                 // 0 = EOF
  std::vector<kj::AutoCloseFd> fds;  // CLOEXEC
  bool truncated = false;            // data or fds did not fit: refuse
};

enum class SendResult : uint8_t { kSent, kWouldBlock, kPeerGone };

// sendmsg with MSG_DONTWAIT|MSG_NOSIGNAL. Throws (kj) on faults other than
// those named in SendResult.
SendResult sendWithFds(int socket, kj::ArrayPtr<const kj::byte> data, kj::ArrayPtr<const int> fds);

// recvmsg with MSG_CMSG_CLOEXEC|MSG_DONTWAIT, at most maxFds descriptors (any
// more are closed and `truncated` set). Nothing when it would block.
kj::Maybe<Received> receiveWithFds(int socket, kj::ArrayPtr<kj::byte> buffer, size_t maxFds);

// Room for one descriptor beside the bytes of a message, for callers of sendmsg.
// Async-signal-safe.
struct PassedFd {
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))] = {};
  // `this` must live until the message is sent.
  void attachTo(msghdr& message, int fd);
};

struct SocketPair {
  kj::AutoCloseFd a, b;
};
// CLOEXEC; `type` is SOCK_STREAM or SOCK_SEQPACKET, blocking flags as given.
SocketPair socketPair(int type);

}  // namespace cordon::ipc
