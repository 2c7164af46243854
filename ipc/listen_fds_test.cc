#include "ipc/listen_fds.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <kj/debug.h>
#include <kj/exception.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <string>

namespace cordon::ipc {
namespace {

enum class Kind { kUnixListening, kTcpListening, kUnixIdle, kDatagram, kFile };

int make(Kind kind) {
  switch (kind) {
    case Kind::kUnixListening:
    case Kind::kUnixIdle: {
      int fd = socket(AF_UNIX, SOCK_STREAM, 0);
      sockaddr_un address = {};
      address.sun_family = AF_UNIX;
      // Autobind: an abstract name that the kernel picks.
      if (bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(sa_family_t)) != 0) return -1;
      if (kind == Kind::kUnixListening && listen(fd, 4) != 0) return -1;
      return fd;
    }
    case Kind::kTcpListening: {
      int fd = socket(AF_INET, SOCK_STREAM, 0);
      return listen(fd, 4) == 0 ? fd : -1;
    }
    case Kind::kDatagram:
      return socket(AF_UNIX, SOCK_DGRAM, 0);
    case Kind::kFile:
      return open("/dev/null", O_RDONLY);
  }
  return -1;
}

// Runs `body` in a child whose fds 3.. are `kinds`, as socket activation makes
// them; true when it returned true.
bool activated(const std::vector<Kind>& kinds, const char* names, std::function<bool()> body,
               int pidOffset = 0) {
  pid_t child = fork();
  if (child == 0) {
    std::vector<int> made;
    for (Kind kind : kinds) made.push_back(fcntl(make(kind), F_DUPFD, 100));
    for (size_t i = 0; i < made.size(); ++i) dup2(made[i], 3 + static_cast<int>(i));
    setenv("LISTEN_PID", std::to_string(getpid() + pidOffset).c_str(), 1);
    setenv("LISTEN_FDS", std::to_string(kinds.size()).c_str(), 1);
    if (names != nullptr) setenv("LISTEN_FDNAMES", names, 1);
    bool good = false;
    KJ_IF_MAYBE (exception, kj::runCatchingExceptions([&]() { good = body(); })) {
      fprintf(stderr, "%s\n", exception->getDescription().cStr());
      good = false;
    }
    _exit(good ? 0 : 1);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

bool throws() {
  return kj::runCatchingExceptions([]() { takeListenFds(); }) != nullptr;
}

TEST(ListenFds, WhatElseWasInheritedIsClosed) {
  EXPECT_TRUE(activated({Kind::kUnixListening}, "agents", [] {
    int forgotten = fcntl(0, F_DUPFD, 50), other = fcntl(0, F_DUPFD, 4);
    if (forgotten < 50 || other < 4) return false;
    auto fd = takeListenFd("agents");
    auto isOpen = [](int number) { return fcntl(number, F_GETFD) >= 0; };
    return isOpen(fd) && isOpen(2) && !isOpen(forgotten) && !isOpen(other);
  }));
}

TEST(ListenFds, TakesNamedSockets) {
  EXPECT_TRUE(activated({Kind::kUnixListening, Kind::kTcpListening}, "broker:agents", []() {
    auto taken = takeListenFds();
    return taken.size() == 2 && taken[0].name == "broker" && taken[1].name == "agents" &&
           fcntl(taken[0].fd, F_GETFD) == FD_CLOEXEC &&
           (fcntl(taken[1].fd, F_GETFL) & O_NONBLOCK) != 0 && getenv("LISTEN_FDS") == nullptr &&
           getenv("LISTEN_PID") == nullptr && getenv("LISTEN_FDNAMES") == nullptr;
  }));
}

TEST(ListenFds, ByName) {
  EXPECT_TRUE(activated({Kind::kUnixListening, Kind::kUnixListening}, "a:b",
                        []() { return takeListenFd("b").get() == 4; }));
  EXPECT_TRUE(
      activated({Kind::kUnixListening}, nullptr, []() { return takeListenFd("b").get() == 3; }));
  EXPECT_FALSE(activated({Kind::kUnixListening, Kind::kUnixListening}, "a:c", []() {
    takeListenFd("b");
    return true;
  }));
}

TEST(ListenFds, RefusesWhatIsNotAListener) {
  for (Kind kind : {Kind::kUnixIdle, Kind::kDatagram, Kind::kFile}) {
    EXPECT_TRUE(activated({kind}, nullptr, throws)) << static_cast<int>(kind);
  }
}

TEST(ListenFds, RefusesNothingAndForeignPid) {
  EXPECT_TRUE(activated({}, nullptr, throws));
  EXPECT_TRUE(activated({Kind::kUnixListening}, nullptr, throws, 1));
  EXPECT_TRUE(activated({Kind::kUnixListening}, nullptr, []() {
    setenv("LISTEN_FDS", "1x", 1);
    return throws();
  }));
  EXPECT_TRUE(activated({Kind::kUnixListening}, nullptr, []() {
    setenv("LISTEN_FDS", "70", 1);
    return throws();
  }));
}

}  // namespace
}  // namespace cordon::ipc
