// Reaching something outside: sockets of the host, raw packets, interfaces.
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_packet.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/vm_sockets.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>

#include "escape_suite/programs/program.h"

namespace cordon::escape_programs {
namespace {

constexpr int kConnectMs = 300;
constexpr char kKnock[] = "cordon-escape\n";

// Connects, waits at most kConnectMs, says a word when it is through.
int connectTo(int family, int type, const sockaddr* address, socklen_t length) {
  int fd = socket(family, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return errno;
  int error = errorOf(connect(fd, address, length));
  if (error == EINPROGRESS || error == EAGAIN) {
    pollfd waiting{.fd = fd, .events = POLLOUT, .revents = 0};
    if (poll(&waiting, 1, kConnectMs) == 1) {
      socklen_t size = sizeof(error);
      if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) < 0) error = errno;
    } else {
      error = ETIMEDOUT;
    }
  }
  if (error == 0) error = errorOf(send(fd, kKnock, sizeof(kKnock) - 1, MSG_NOSIGNAL));
  close(fd);
  return error;
}

int connectInet(const char* text, long long port, int type) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  if (inet_pton(AF_INET, text, &address.sin_addr) == 1) {
    return connectTo(AF_INET, type, reinterpret_cast<sockaddr*>(&address), sizeof(address));
  }
  sockaddr_in6 address6{};
  address6.sin6_family = AF_INET6;
  address6.sin6_port = htons(static_cast<uint16_t>(port));
  if (inet_pton(AF_INET6, text, &address6.sin6_addr) != 1) return EINVAL;
  return connectTo(AF_INET6, type, reinterpret_cast<sockaddr*>(&address6), sizeof(address6));
}

int connectAbstract(const char* name, int type) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  size_t length = strnlen(name, sizeof(address.sun_path) - 1);
  memcpy(address.sun_path + 1, name, length);
  return connectTo(AF_UNIX, type, reinterpret_cast<sockaddr*>(&address),
                   static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length));
}

int connectVsock(unsigned cid, long long port) {
  sockaddr_vm address{};
  address.svm_family = AF_VSOCK;
  address.svm_cid = cid;
  address.svm_port = static_cast<unsigned>(port);
  return connectTo(AF_VSOCK, SOCK_STREAM, reinterpret_cast<sockaddr*>(&address), sizeof(address));
}

int openSocket(int family, int type, int protocol) {
  int fd = socket(family, type | SOCK_CLOEXEC, protocol);
  int error = errorOf(fd);
  if (fd >= 0) close(fd);
  return error;
}

// The kernel's answer to one rtnetlink request: 0 or an errno.
int askRoute(const void* request, size_t length) {
  int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
  if (fd < 0) return errno;
  int error = errorOf(send(fd, request, length, 0));
  pollfd waiting{.fd = fd, .events = POLLIN, .revents = 0};
  if (error == 0 && poll(&waiting, 1, kConnectMs) != 1) error = ETIMEDOUT;
  if (error == 0) {
    alignas(nlmsghdr) char answer[1024];
    ssize_t n = recv(fd, answer, sizeof(answer), 0);
    nlmsghdr header{};
    nlmsgerr result{};
    if (n < static_cast<ssize_t>(NLMSG_LENGTH(sizeof(result)))) {
      error = n < 0 ? errno : EBADMSG;
    } else {
      memcpy(&header, answer, sizeof(header));
      memcpy(&result, answer + NLMSG_HDRLEN, sizeof(result));
      error = header.nlmsg_type == NLMSG_ERROR ? -result.error : EBADMSG;
    }
  }
  close(fd);
  return error;
}

struct LinkRequest {
  nlmsghdr header;
  ifinfomsg link;
};

LinkRequest linkRequest(uint16_t type, int index) {
  LinkRequest request{};
  request.header.nlmsg_len = sizeof(request);
  request.header.nlmsg_type = type;
  request.header.nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK;
  request.link.ifi_family = AF_UNSPEC;
  request.link.ifi_index = index;
  return request;
}

struct Interfaces {
  int total;
  int outside;  // up, and not the loopback
};

void countInterface(const char* line, void* context) {
  auto* found = static_cast<Interfaces*>(context);
  const char* colon = strchr(line, ':');
  if (colon == nullptr) return;
  while (*line == ' ') ++line;
  ifreq request{};
  size_t length = static_cast<size_t>(colon - line);
  if (length >= sizeof(request.ifr_name)) return;
  memcpy(request.ifr_name, line, length);
  found->total++;
  int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return;
  if (ioctl(fd, SIOCGIFFLAGS, &request) == 0 && (request.ifr_flags & IFF_UP) != 0 &&
      (request.ifr_flags & IFF_LOOPBACK) == 0) {
    found->outside++;
  }
  close(fd);
}

struct Sockets {
  int lines;
  int named;
};

void countNamedSocket(const char* line, void* context) {
  auto* found = static_cast<Sockets*>(context);
  // "Num RefCount Protocol Flags Type St Inode Path": seven spaces at least
  // before a path or an @ name; the heading has no digit in front.
  if (line[0] == 'N') return;
  found->lines++;
  if (strchr(line, '/') != nullptr || strchr(line, '@') != nullptr) found->named++;
}

}  // namespace

// connect TCP-PORT ABSTRACT-NAME VSOCK-PORT [ADDRESS PORT]...
void connectOutside(const Arguments& arguments) {
  long long port = arguments.number(0, 0);
  const char* name = arguments.text(1);
  tried("loopback_tcp", connectInet("127.0.0.1", port, SOCK_STREAM));
  tried("loopback_tcp6", connectInet("::1", port, SOCK_STREAM));
  tried("abstract_stream", connectAbstract(name, SOCK_STREAM));
  // Datagrams have no connection: sending is all there is, and whether one
  // arrived only the listener knows.
  report({{"udp", connectInet("127.0.0.1", port, SOCK_DGRAM)}});
  tried("vsock_loopback", connectVsock(VMADDR_CID_LOCAL, arguments.number(2, 0)));
  // Where this machine is a guest itself, a vsock reaches its hypervisor from
  // any network namespace: having one is enough, nobody is called.
  tried("vsock_socket", openSocket(AF_VSOCK, SOCK_STREAM, 0));
  for (int i = 3; i + 1 < arguments.count; i += 2) {
    tried("address", connectInet(arguments.text(i), arguments.number(i + 1, 0), SOCK_STREAM));
  }
  // A cloud's metadata service, which hands out credentials to whoever asks
  // from the machine.
  if (arguments.armed) tried("metadata", connectInet("169.254.169.254", 80, SOCK_STREAM));
}

void rawSocket(const Arguments&) {
  tried("raw_icmp", openSocket(AF_INET, SOCK_RAW, IPPROTO_ICMP));
  tried("raw_tcp", openSocket(AF_INET, SOCK_RAW, IPPROTO_TCP));
  tried("raw_ip", openSocket(AF_INET, SOCK_RAW, IPPROTO_RAW));
  tried("raw_icmp6", openSocket(AF_INET6, SOCK_RAW, IPPROTO_ICMPV6));
  tried("packet_raw", openSocket(AF_PACKET, SOCK_RAW, htons(ETH_P_ALL)));
  tried("packet_dgram", openSocket(AF_PACKET, SOCK_DGRAM, htons(ETH_P_ALL)));
}

void netlink(const Arguments& arguments) {
  Interfaces found{};
  bool readable = eachLine("/proc/net/dev", countInterface, &found);
  report({{"readable", readable}, {"interfaces", found.total}, {"outside", found.outside}});
  // An interface that can't exist: the answer says whether one could be changed.
  LinkRequest remove = linkRequest(RTM_DELLINK, 0x7fffffff);
  gated("delete_link", askRoute(&remove, sizeof(remove)));
  LinkRequest change = linkRequest(RTM_NEWLINK, 0x7fffffff);
  gated("change_link", askRoute(&change, sizeof(change)));
  if (arguments.armed) {
    LinkRequest down = linkRequest(RTM_NEWLINK, 1);
    down.link.ifi_change = IFF_UP;
    tried("loopback_down", askRoute(&down, sizeof(down)));
  }
}

void socketScan(const Arguments&) {
  Sockets found{};
  bool readable = eachLine("/proc/net/unix", countNamedSocket, &found);
  report({{"readable", readable}, {"sockets", found.lines}, {"named", found.named}});
  // Control sockets that hand out the host to whoever can open them.
  const char* const wanted[] = {"/run/docker.sock",        "/run/containerd/containerd.sock",
                                "/run/systemd/private",    "/run/dbus/system_bus_socket",
                                "/run/cordon/broker.sock", "/run/cordon/agents.sock"};
  int present = 0;
  for (const char* path : wanted) present += access(path, F_OK) == 0;
  report({{"control_sockets", present}});
}

}  // namespace cordon::escape_programs
