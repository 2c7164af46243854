// What the runner sets up and watches outside of the sandbox: listeners that a
// program may reach, places on the host that it may write to, and processes
// that it may leave behind. Everything is closed and removed by destructors.
#pragma once
#include <string>
#include <vector>

#include "frontend/cli/fd.h"

namespace cordon::escape {

using cli::Fd;

// 32 random hex digits.
std::string randomName();

// Listeners on the host's loopback (TCP and UDP over IPv4, TCP over IPv6 where
// the host has it), on an abstract unix socket, on vsock where the kernel has it, and on further
// TCP addresses.
class Listeners {
 public:
  // Throws std::system_error when one that is asked for can't be opened.
  explicit Listeners(const std::vector<std::string>& addresses);

  int tcpPort() const { return port; }
  int vsockPort() const { return vsock; }
  // Why there is none on ::1, at the port of the others; "": there is one.
  const std::string& noIpv6() const { return ipv6Missing; }
  const std::string& abstractName() const { return abstract; }
  // ADDRESS, PORT, ...
  std::vector<std::string> addresses() const;

  // Reaches each of them from here: without that, hearing nothing would mean
  // nothing. Forgets what was heard. False when one did not hear us.
  bool check();
  // What has arrived since; one name per connection or datagram, at most 64.
  std::vector<std::string> heard();

 private:
  struct Listener {
    std::string name;  // "tcp 127.0.0.1:4711"
    Fd fd;
    bool datagram;
    std::string address;  // sockaddr bytes, to reach it
  };
  void listenInet(const std::string& address, int wantedPort, int type);
  void listenIpv6();
  void listenAbstract();
  void listenVsock();

  std::vector<Listener> listeners;
  std::vector<std::string> further;
  std::string abstract;
  std::string ipv6Missing;
  int port = 0;
  int vsock = 0;
};

// Paths on the host that do not exist yet, in places where a program of a
// sandbox has no business. Removes those that came into being.
class HostPlaces {
 public:
  HostPlaces();
  ~HostPlaces();
  HostPlaces(const HostPlaces&) = delete;
  HostPlaces& operator=(const HostPlaces&) = delete;

  const std::vector<std::string>& paths() const { return files; }
  // Those that exist now. `complete` is false when a place can't be looked at.
  std::vector<std::string> found(bool* complete) const;

 private:
  std::string scratch;  // a directory of our own that everybody may write to
  std::vector<std::string> files;
};

// True when a process of this machine has `nonce` as one of its arguments (we
// ourselves do not count).
bool processWithArgument(const std::string& nonce);

}  // namespace cordon::escape
