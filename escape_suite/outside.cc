#include "escape_suite/outside.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <linux/vm_sockets.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <system_error>

namespace cordon::escape {
namespace {

constexpr int kBacklog = 64;
constexpr size_t kMostHeard = 64;
constexpr int kCheckMs = 1000;
// A vsock's loopback answers at once or, where there is none, never.
constexpr int kVsockMs = 100;

[[noreturn]] void fail(const std::string& what) {
  throw std::system_error(errno, std::system_category(), what);
}

// The bytes of a socket address, as the calls want them.
struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  std::string bytes() const { return std::string(reinterpret_cast<const char*>(&storage), length); }
};

template <typename Kind>
Address addressOf(const Kind& kind, size_t length = sizeof(Kind)) {
  Address address;
  memcpy(&address.storage, &kind, length);
  address.length = static_cast<socklen_t>(length);
  return address;
}

Address inetAddress(const std::string& text, int port) {
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  v4.sin_port = htons(static_cast<uint16_t>(port));
  if (inet_pton(AF_INET, text.c_str(), &v4.sin_addr) == 1) return addressOf(v4);
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(static_cast<uint16_t>(port));
  if (inet_pton(AF_INET6, text.c_str(), &v6.sin6_addr) == 1) return addressOf(v6);
  errno = EINVAL;
  fail("not an IP address: " + text);
}

int portOf(int fd) {
  Address address;
  address.length = sizeof(address.storage);
  if (getsockname(fd, address.get(), &address.length) < 0) fail("getsockname");
  if (address.storage.ss_family == AF_INET) {
    sockaddr_in v4{};
    memcpy(&v4, &address.storage, sizeof(v4));
    return ntohs(v4.sin_port);
  }
  if (address.storage.ss_family == AF_VSOCK) {
    sockaddr_vm vm{};
    memcpy(&vm, &address.storage, sizeof(vm));
    return static_cast<int>(vm.svm_port);
  }
  sockaddr_in6 v6{};
  memcpy(&v6, &address.storage, sizeof(v6));
  return ntohs(v6.sin6_port);
}

// Sends a knock there; what the far end makes of it is seen at the far end.
void knock(const std::string& addressBytes, bool datagram, int patienceMs = kCheckMs) {
  sockaddr_storage storage{};
  memcpy(&storage, addressBytes.data(), std::min(addressBytes.size(), sizeof(storage)));
  int type = (datagram ? SOCK_DGRAM : SOCK_STREAM) | SOCK_CLOEXEC | SOCK_NONBLOCK;
  Fd fd(socket(storage.ss_family, type, 0));
  if (!fd) return;
  auto length = static_cast<socklen_t>(addressBytes.size());
  if (connect(fd.get(), reinterpret_cast<sockaddr*>(&storage), length) < 0) {
    if (errno != EINPROGRESS) return;
    pollfd waiting{.fd = fd.get(), .events = POLLOUT, .revents = 0};
    poll(&waiting, 1, patienceMs);
  }
  (void)!send(fd.get(), "check", 5, MSG_NOSIGNAL);
}

// One connection or datagram taken from a listener.
bool takeOne(int fd, bool datagram) {
  if (datagram) {
    char buffer[64];
    return recv(fd, buffer, sizeof(buffer), MSG_DONTWAIT | MSG_TRUNC) >= 0;
  }
  Fd connection(accept4(fd, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  return static_cast<bool>(connection);
}

bool hasArgument(const std::string& commandLine, const std::string& wanted) {
  size_t at = 0;
  while (at < commandLine.size()) {
    size_t end = commandLine.find('\0', at);
    if (end == std::string::npos) end = commandLine.size();
    if (commandLine.compare(at, end - at, wanted) == 0) return true;
    at = end + 1;
  }
  return false;
}

}  // namespace

std::string randomName() {
  unsigned char bytes[16];
  if (getrandom(bytes, sizeof(bytes), 0) != sizeof(bytes)) fail("getrandom");
  std::string text;
  for (unsigned char byte : bytes) {
    constexpr char kDigits[] = "0123456789abcdef";
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

Listeners::Listeners(const std::vector<std::string>& addresses) {
  listenInet("127.0.0.1", 0, SOCK_STREAM);
  port = portOf(listeners.back().fd.get());
  listenInet("127.0.0.1", port, SOCK_DGRAM);
  listenIpv6();
  listenAbstract();
  listenVsock();
  for (const std::string& address : addresses) {
    listenInet(address, 0, SOCK_STREAM);
    further.push_back(address);
    further.push_back(std::to_string(portOf(listeners.back().fd.get())));
  }
}

std::vector<std::string> Listeners::addresses() const {
  return further;
}

void Listeners::listenInet(const std::string& text, int wantedPort, int type) {
  Address address = inetAddress(text, wantedPort);
  Fd fd(socket(address.storage.ss_family, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) fail("socket");
  if (bind(fd.get(), address.get(), address.length) < 0) fail("bind " + text);
  if (type == SOCK_STREAM && listen(fd.get(), kBacklog) < 0) fail("listen " + text);
  int bound = portOf(fd.get());
  bool datagram = type == SOCK_DGRAM;
  std::string name =
      std::string(datagram ? "udp " : "tcp ") + text + " port " + std::to_string(bound);
  listeners.push_back(
      Listener{std::move(name), std::move(fd), datagram, inetAddress(text, bound).bytes()});
}

void Listeners::listenIpv6() {
  try {
    listenInet("::1", port, SOCK_STREAM);
  } catch (const std::system_error& error) {
    int reason = error.code().value();
    if (reason != EAFNOSUPPORT && reason != EADDRNOTAVAIL) throw;
    ipv6Missing = error.what();
  }
}

void Listeners::listenAbstract() {
  abstract = "cordon-escape-" + randomName();
  sockaddr_un unixAddress{};
  unixAddress.sun_family = AF_UNIX;
  memcpy(unixAddress.sun_path + 1, abstract.data(), abstract.size());
  Address address = addressOf(unixAddress, offsetof(sockaddr_un, sun_path) + 1 + abstract.size());
  Fd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) fail("socket");
  if (bind(fd.get(), address.get(), address.length) < 0) fail("bind an abstract socket");
  if (listen(fd.get(), kBacklog) < 0) fail("listen on an abstract socket");
  listeners.push_back(Listener{"abstract unix socket", std::move(fd), false, address.bytes()});
}

// Network namespaces do not separate vsock, so it is worth a listener of its
// own; a kernel without it (or without its loopback) has nothing to separate.
void Listeners::listenVsock() {
  Fd fd(socket(AF_VSOCK, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return;
  sockaddr_vm any{};
  any.svm_family = AF_VSOCK;
  any.svm_cid = VMADDR_CID_ANY;
  any.svm_port = VMADDR_PORT_ANY;
  Address address = addressOf(any);
  if (bind(fd.get(), address.get(), address.length) < 0) return;
  if (listen(fd.get(), kBacklog) < 0) return;
  vsock = portOf(fd.get());
  any.svm_cid = VMADDR_CID_LOCAL;
  any.svm_port = static_cast<unsigned>(vsock);
  Listener listener{"vsock", std::move(fd), false, addressOf(any).bytes()};
  knock(listener.address, false, kVsockMs);
  if (!takeOne(listener.fd.get(), false)) return;
  listeners.push_back(std::move(listener));
}

bool Listeners::check() {
  heard();
  bool all = true;
  for (Listener& listener : listeners) {
    knock(listener.address, listener.datagram);
    pollfd waiting{.fd = listener.fd.get(), .events = POLLIN, .revents = 0};
    all = poll(&waiting, 1, kCheckMs) == 1 && takeOne(listener.fd.get(), listener.datagram) && all;
  }
  heard();
  return all;
}

std::vector<std::string> Listeners::heard() {
  std::vector<std::string> names;
  for (Listener& listener : listeners) {
    while (takeOne(listener.fd.get(), listener.datagram)) {
      if (names.size() < kMostHeard) names.push_back(listener.name);
    }
  }
  return names;
}

HostPlaces::HostPlaces() {
  std::string name = "cordon-escape-" + randomName();
  char made[] = "/tmp/cordon-escape-XXXXXX";
  if (mkdtemp(made) != nullptr) {
    scratch = made;
    // Open to everybody: what keeps a program from it must be the boundary and
    // not a mode.
    if (chmod(scratch.c_str(), 01777) < 0) {
      int error = errno;
      rmdir(scratch.c_str());
      errno = error;
      fail("chmod " + scratch);
    }
  } else {
    fail("mkdtemp in /tmp");
  }
  for (const char* place : {"/etc", "/usr", "/usr/bin", "/var/tmp", "/root", "/home", "/run",
                            "/dev/shm", "/tmp", "/"}) {
    std::string path(place);
    if (path.back() != '/') path += '/';
    files.push_back(path + name);
  }
  files.push_back(scratch + "/" + name);
}

HostPlaces::~HostPlaces() {
  for (const std::string& path : files) unlink(path.c_str());
  rmdir(scratch.c_str());
}

std::vector<std::string> HostPlaces::found(bool* complete) const {
  std::vector<std::string> here;
  *complete = true;
  for (const std::string& path : files) {
    struct stat status {};
    if (lstat(path.c_str(), &status) == 0) {
      here.push_back(path);
    } else if (errno != ENOENT && errno != ENOTDIR) {
      *complete = false;
    }
  }
  return here;
}

bool processWithArgument(const std::string& nonce) {
  constexpr size_t kMostCommandLine = 64 * 1024;
  std::unique_ptr<DIR, int (*)(DIR*)> proc(opendir("/proc"), closedir);
  if (proc == nullptr) fail("opendir /proc");
  while (dirent* entry = readdir(proc.get())) {
    std::string pid = entry->d_name;
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    if (pid == std::to_string(getpid())) continue;
    std::ifstream file("/proc/" + pid + "/cmdline", std::ios::binary);
    // Gone meanwhile, or not for us to see: the caller looks for a positive.
    // read() and not the iterators of a file buffer: those throw when the process
    // ends in between.
    std::string commandLine(kMostCommandLine, '\0');
    file.read(commandLine.data(), static_cast<std::streamsize>(commandLine.size()));
    commandLine.resize(static_cast<size_t>(file.gcount()));
    if (hasArgument(commandLine, nonce)) return true;
  }
  return false;
}

}  // namespace cordon::escape
