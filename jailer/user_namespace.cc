#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "jailer/steps.h"

namespace cordon::jailer {

namespace {

constexpr auto kPrepare = Step::kUserNamespace;

void writeFile(const char* path, const char* text) {
  kj::AutoCloseFd file(require(kPrepare, open(path, O_WRONLY | O_CLOEXEC)));
  auto size = static_cast<ssize_t>(strlen(text));
  if (write(file, text, static_cast<size_t>(size)) != size) fail(kPrepare, -1);
}

void bringLoopbackUp() {
  kj::AutoCloseFd socket(require(kPrepare, ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)));
  ifreq request = {};
  strcpy(request.ifr_name, "lo");
  require(kPrepare, ioctl(socket, SIOCGIFFLAGS, &request));
  request.ifr_flags = static_cast<short>(request.ifr_flags | IFF_UP);
  require(kPrepare, ioctl(socket, SIOCSIFFLAGS, &request));
}

// One byte, and room for two descriptors.
struct Datagram {
  Datagram() {
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = room;
    message.msg_controllen = sizeof(room);
  }
  char byte = 1;
  alignas(cmsghdr) char room[CMSG_SPACE(2 * sizeof(int))] = {};
  iovec part = {&byte, 1};
  msghdr message = {};
};

// Both namespaces of this process, to whoever has the other end.
void sendNamespaces(int socket) {
  kj::AutoCloseFd user(require(kPrepare, open("/proc/self/ns/user", O_RDONLY | O_CLOEXEC)));
  kj::AutoCloseFd network(require(kPrepare, open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC)));
  int fds[] = {user, network};
  Datagram datagram;
  cmsghdr* header = CMSG_FIRSTHDR(&datagram.message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(fds));
  memcpy(CMSG_DATA(header), fds, sizeof(fds));
  require(kPrepare, sendmsg(socket, &datagram.message, MSG_NOSIGNAL));
}

Prepared receiveNamespaces(int socket) {
  Datagram datagram;
  ssize_t size = require(kPrepare, recvmsg(socket, &datagram.message, MSG_CMSG_CLOEXEC));
  cmsghdr* header = CMSG_FIRSTHDR(&datagram.message);
  int fds[2];
  // The end of the stream: it has failed and said why itself, or was killed.
  if (size != 1 || header == nullptr || header->cmsg_len != CMSG_LEN(sizeof(fds))) {
    fail(kPrepare, ECHILD);
  }
  memcpy(fds, CMSG_DATA(header), sizeof(fds));
  return Prepared{kj::AutoCloseFd(fds[0]), kj::AutoCloseFd(fds[1]), kj::AutoCloseFd(), 0};
}

// In the two new namespaces, with every capability there and none on the host.
[[noreturn]] void furnish(int socket, int mapped) {
  sendNamespaces(socket);
  bringLoopbackUp();
  // A port below 1024 is nothing special where there is nobody else.
  writeFile("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0");
  // Whatever a filter lets through: no user namespace below this one.
  writeFile("/proc/sys/user/max_user_namespaces", "0");
  char byte = 1;
  require(kPrepare, send(socket, &byte, 1, MSG_NOSIGNAL));
  // Lives until its maps are written.
  ssize_t ignored = read(mapped, &byte, 1);
  static_cast<void>(ignored);
  _exit(0);
}

void writeMap(pid_t pid, const char* name, JailSpec::Reader spec) {
  char path[64], map[64];
  snprintf(path, sizeof(path), "/proc/%d/%s", pid, name);
  snprintf(map, sizeof(map), "0 %u %u\n", spec.getIdFirst(), spec.getIdCount());
  writeFile(path, map);
}

void becomeEffectively(uid_t uid) {
  require(kPrepare, syscall(SYS_setresuid, -1, uid, -1));
}

}  // namespace

Prepared prepareNamespaces(JailSpec::Reader spec) {
  int ends[2];
  require(kPrepare, socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends));
  kj::AutoCloseFd ours(ends[0]), theirs(ends[1]);
  require(kPrepare, pipe2(ends, O_CLOEXEC));
  kj::AutoCloseFd mapped(ends[0]), mapping(ends[1]);
  // Whoever makes a user namespace is charged with what is used in it: inotify
  // instances, pending signals, locked memory, message queues. Were it the host's
  // root, one sandbox could use up root's and everybody else's.
  becomeEffectively(spec.getIdFirst());
  auto pid = static_cast<pid_t>(
      require(kPrepare, syscall(SYS_clone, SIGCHLD | CLONE_NEWUSER | CLONE_NEWNET, 0, 0, 0, 0)));
  if (pid == 0) {
    // Its own copies would keep open what it and we wait for the end of.
    ours = nullptr;
    mapping = nullptr;
    furnish(theirs, mapped);
  }
  becomeEffectively(0);
  theirs = nullptr;
  // By itself, since it isn't ours to look at in /proc.
  Prepared prepared = receiveNamespaces(ours);
  writeMap(pid, "uid_map", spec);
  writeMap(pid, "gid_map", spec);
  prepared.furnished = kj::mv(ours);
  prepared.child = pid;
  return prepared;  // `mapping` closes: it may go
}

void awaitFurnished(const Prepared& prepared) {
  char byte;
  // The end of the stream: it has failed and said why itself, or was killed.
  if (recv(prepared.furnished, &byte, 1, 0) != 1) fail(kPrepare, ECHILD);
}

}  // namespace cordon::jailer
