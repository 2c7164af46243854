#include "ipc/listen_fds.h"

#include <fcntl.h>
#include <kj/debug.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string_view>

namespace cordon::ipc {

namespace {

constexpr int kFirstFd = 3;  // SD_LISTEN_FDS_START
constexpr int kMaxFds = 64;

std::optional<int> numberFromEnvironment(const char* name) {
  const char* text = getenv(name);
  if (text == nullptr) return std::nullopt;
  int value = 0;
  const char* end = text + strlen(text);
  auto [stop, error] = std::from_chars(text, end, value);
  KJ_REQUIRE(error == std::errc() && stop == end && value >= 0, "not a number", name, text);
  return value;
}

std::vector<std::string> splitNames(const char* text) {
  std::vector<std::string> names;
  if (text == nullptr) return names;
  std::string_view rest(text);
  for (;;) {
    size_t colon = rest.find(':');
    names.emplace_back(rest.substr(0, colon));
    if (colon == std::string_view::npos) return names;
    rest.remove_prefix(colon + 1);
  }
}

int socketOption(int fd, int option, const char* what) {
  int value = 0;
  socklen_t size = sizeof(value);
  KJ_SYSCALL(getsockopt(fd, SOL_SOCKET, option, &value, &size), what, fd);
  return value;
}

void requireListeningStream(int fd) {
  KJ_REQUIRE(socketOption(fd, SO_TYPE, "passed fd is not a socket") == SOCK_STREAM,
             "passed socket is not a stream socket", fd);
  int domain = socketOption(fd, SO_DOMAIN, "SO_DOMAIN");
  KJ_REQUIRE(domain == AF_UNIX || domain == AF_INET || domain == AF_INET6,
             "passed socket is neither unix nor TCP", fd, domain);
  KJ_REQUIRE(socketOption(fd, SO_ACCEPTCONN, "SO_ACCEPTCONN") == 1,
             "passed socket is not listening", fd);
}

void setFlags(int fd) {
  KJ_SYSCALL(fcntl(fd, F_SETFD, FD_CLOEXEC), fd);
  int flags;
  KJ_SYSCALL(flags = fcntl(fd, F_GETFL), fd);
  KJ_SYSCALL(fcntl(fd, F_SETFL, flags | O_NONBLOCK), fd);
}

}  // namespace

std::vector<ListenFd> takeListenFds() {
  auto pid = numberFromEnvironment("LISTEN_PID");
  auto count = numberFromEnvironment("LISTEN_FDS");
  auto names = splitNames(getenv("LISTEN_FDNAMES"));
  KJ_REQUIRE(pid.has_value() && count.value_or(0) > 0,
             "no listening socket was passed (LISTEN_FDS): start this by socket activation, e.g. "
             "by `cordon up` or systemd-socket-activate");
  KJ_REQUIRE(*pid == getpid(), "LISTEN_PID names another process", *pid);
  KJ_REQUIRE(*count <= kMaxFds, "too many sockets passed", *count);

  KJ_SYSCALL(syscall(SYS_close_range, static_cast<unsigned>(kFirstFd + *count), ~0u, 0u),
             "closing what was inherited");
  std::vector<ListenFd> taken;
  for (int i = 0; i < *count; ++i) {
    KJ_SYSCALL(fcntl(kFirstFd + i, F_GETFD), "a passed descriptor is not open", kFirstFd + i);
    ListenFd one;
    one.fd = kj::AutoCloseFd(kFirstFd + i);
    if (static_cast<size_t>(i) < names.size()) one.name = names[static_cast<size_t>(i)];
    taken.push_back(kj::mv(one));
  }
  for (auto& one : taken) {
    requireListeningStream(one.fd);
    setFlags(one.fd);
  }
  unsetenv("LISTEN_PID");
  unsetenv("LISTEN_FDS");
  unsetenv("LISTEN_FDNAMES");
  return taken;
}

kj::AutoCloseFd takeListenFd(const char* name) {
  auto taken = takeListenFds();
  for (auto& one : taken) {
    if (one.name == name) return kj::mv(one.fd);
  }
  KJ_REQUIRE(taken.size() == 1, "none of the passed sockets has this name", name, taken.size());
  return kj::mv(taken[0].fd);
}

}  // namespace cordon::ipc
