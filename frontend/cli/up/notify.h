// Readiness as parts tell it (sd_notify(3)).
#pragma once
#include <sys/types.h>

#include <optional>
#include <string>

namespace cordon::up {

struct Notification {
  pid_t sender = -1;  // as the kernel says
  std::string text;   // lines of KEY=VALUE, at most 4 KiB
  bool ready() const;
};

// The next datagram on a socket of StateDirectory::datagrams(), or nothing.
// Descriptors that come with one are closed.
std::optional<Notification> receive(int socket);

}  // namespace cordon::up
