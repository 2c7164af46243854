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

// In the two new namespaces, with every capability there and none on the host.
[[noreturn]] void furnish(int ready, int done) {
  bringLoopbackUp();
  // A port below 1024 is nothing special where there is nobody else.
  writeFile("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0");
  // Whatever a filter lets through: no user namespace below this one.
  writeFile("/proc/sys/user/max_user_namespaces", "0");
  char byte = 1;
  if (write(ready, &byte, 1) != 1) fail(kPrepare, -1);
  // Lives until its maps are written.
  ssize_t ignored = read(done, &byte, 1);
  static_cast<void>(ignored);
  _exit(0);
}

struct Pipe {
  Pipe() {
    int fds[2];
    require(kPrepare, pipe2(fds, O_CLOEXEC));
    readEnd = kj::AutoCloseFd(fds[0]);
    writeEnd = kj::AutoCloseFd(fds[1]);
  }
  kj::AutoCloseFd readEnd, writeEnd;
};

kj::AutoCloseFd openNamespace(pid_t pid, const char* name) {
  char path[64];
  snprintf(path, sizeof(path), "/proc/%d/ns/%s", pid, name);
  return kj::AutoCloseFd(require(kPrepare, open(path, O_RDONLY | O_CLOEXEC)));
}

void writeMap(pid_t pid, const char* name, JailSpec::Reader spec) {
  char path[64], map[64];
  snprintf(path, sizeof(path), "/proc/%d/%s", pid, name);
  snprintf(map, sizeof(map), "0 %u %u\n", spec.getIdFirst(), spec.getIdCount());
  writeFile(path, map);
}

}  // namespace

Prepared prepareNamespaces(JailSpec::Reader spec) {
  Pipe ready, done;
  auto pid = static_cast<pid_t>(
      require(kPrepare, syscall(SYS_clone, SIGCHLD | CLONE_NEWUSER | CLONE_NEWNET, 0, 0, 0, 0)));
  if (pid == 0) {
    // Its own copy would keep the pipe open that it waits for the end of.
    done.writeEnd = nullptr;
    furnish(ready.writeEnd, done.readEnd);
  }
  ready.writeEnd = nullptr;
  Prepared prepared{openNamespace(pid, "user"), openNamespace(pid, "net")};
  writeMap(pid, "uid_map", spec);
  writeMap(pid, "gid_map", spec);
  char byte;
  // The end of the pipe: it has failed and said why itself.
  if (read(ready.readEnd, &byte, 1) != 1) _exit(1);
  done.writeEnd = nullptr;
  int status;
  require(kPrepare, waitpid(pid, &status, 0));
  return prepared;
}

}  // namespace cordon::jailer
