#include "frontend/cli/up/notify.h"

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

namespace cordon::up {
namespace {

void closeDescriptors(const cmsghdr* header) {
  size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
  for (size_t i = 0; i < count; ++i) {
    int fd;
    memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(fd));
    close(fd);
  }
}

}  // namespace

bool Notification::ready() const {
  return text == "READY=1" || text.starts_with("READY=1\n") || text.ends_with("\nREADY=1") ||
         text.find("\nREADY=1\n") != std::string::npos;
}

std::optional<Notification> receive(int socket) {
  std::array<char, 4096> data;
  alignas(cmsghdr) std::array<char, 4096> control;
  iovec vector{data.data(), data.size()};
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t count;
  do {
    count = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (count < 0 && errno == EINTR);
  if (count < 0) return std::nullopt;
  Notification notification;
  notification.text.assign(data.data(), size_t(count));
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET) continue;
    if (header->cmsg_type == SCM_RIGHTS) closeDescriptors(header);
    if (header->cmsg_type == SCM_CREDENTIALS) {
      ucred credentials;
      memcpy(&credentials, CMSG_DATA(header), sizeof(credentials));
      notification.sender = credentials.pid;
    }
  }
  return notification;
}

}  // namespace cordon::up
