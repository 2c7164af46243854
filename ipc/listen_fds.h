// Socket activation (the LISTEN_FDS protocol of sd_listen_fds(3)).
#pragma once
#include <kj/io.h>

#include <string>
#include <vector>

namespace cordon::ipc {

struct ListenFd {
  std::string name;    // from LISTEN_FDNAMES; "" or "unknown" where none
  kj::AutoCloseFd fd;  // CLOEXEC, non-blocking
};

// Takes the sockets handed to this process (LISTEN_PID must be ours), sets
// CLOEXEC on them and unsets the environment variables. Checks that each is a
// listening AF_UNIX or TCP stream socket. Throws with a clear message when
// there is none.
//
// Closes every other descriptor above 2: nobody passed it on purpose, and what a
// starter forgot in a service stays in it for life. So call it before anything is
// opened.
std::vector<ListenFd> takeListenFds();

// The one named `name`, or, when exactly one socket was passed, that one.
kj::AutoCloseFd takeListenFd(const char* name);

}  // namespace cordon::ipc
