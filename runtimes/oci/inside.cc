// The init of runc_test's sandboxes: answers questions about what it sees.
//
// On fd 0, as vm-agent: datagrams of ipc/control.h, a stream with each kStream.
// On a stream: one ready byte, then for each line "read PATH", "list PATH",
// "link PATH", "try PATH" (open for writing) or "net" a u32 length and the
// answer, "!ERRNO" on failure. EOF on the control socket ends it. Static, so that
// it needs nothing of the image.
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "ipc/control.h"

namespace {

std::string failure() {
  return "!" + std::to_string(errno);
}

std::string readFile(const std::string& path) {
  int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return failure();
  std::string text;
  char buffer[4096];
  ssize_t got;
  while ((got = read(fd, buffer, sizeof buffer)) > 0) text.append(buffer, static_cast<size_t>(got));
  std::string result = got < 0 ? failure() : text;
  close(fd);
  return result;
}

std::string listDirectory(const std::string& path) {
  DIR* directory = opendir(path.c_str());
  if (directory == nullptr) return failure();
  std::string names;
  while (const dirent* entry = readdir(directory)) names += std::string(entry->d_name) + "\n";
  closedir(directory);
  return names;
}

std::string readLink(const std::string& path) {
  char target[4096];
  ssize_t length = readlink(path.c_str(), target, sizeof target);
  return length < 0 ? failure() : std::string(target, static_cast<size_t>(length));
}

std::string tryWriting(const std::string& path) {
  int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0600);
  if (fd < 0) return failure();
  close(fd);
  return "ok";
}

// Each interface with its flags.
std::string interfaces() {
  std::string text;
  int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return failure();
  for (int index = 1; index < 64; ++index) {
    ifreq request = {};
    request.ifr_ifindex = index;
    if (ioctl(fd, SIOCGIFNAME, &request) != 0) continue;
    std::string name = request.ifr_name;
    if (ioctl(fd, SIOCGIFFLAGS, &request) != 0) return failure();
    text += name + (request.ifr_flags & IFF_UP ? " up\n" : " down\n");
  }
  close(fd);
  return text;
}

std::string answer(const std::string& line) {
  std::string verb = line.substr(0, line.find(' '));
  std::string path = verb.size() < line.size() ? line.substr(verb.size() + 1) : "";
  if (verb == "read") return readFile(path);
  if (verb == "list") return listDirectory(path);
  if (verb == "link") return readLink(path);
  if (verb == "try") return tryWriting(path);
  if (verb == "net") return interfaces();
  return "?";
}

void serve(int stream) {
  if (write(stream, "R", 1) != 1) return;
  std::string line;
  char c;
  while (read(stream, &c, 1) == 1) {
    if (c != '\n') {
      line += c;
      continue;
    }
    std::string text = answer(line);
    line.clear();
    auto length = static_cast<uint32_t>(text.size());
    std::string reply(reinterpret_cast<const char*>(&length), sizeof length);
    reply += text;
    if (send(stream, reply.data(), reply.size(), MSG_NOSIGNAL) < 0) return;
  }
}

// -1: the supervisor is gone. -2: a datagram without a stream.
int nextStream() {
  char data[cordon::ipc::kMaxControlBytes];
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * cordon::ipc::kMaxControlFds)];
  iovec part = {data, sizeof data};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t got = recvmsg(0, &message, MSG_CMSG_CLOEXEC);
  if (got <= 0) return -1;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS) return -2;
  int fd;
  memcpy(&fd, CMSG_DATA(header), sizeof fd);
  return fd;
}

}  // namespace

int main() {
  for (;;) {
    int stream = nextStream();
    if (stream == -1) return 0;
    if (stream < 0) continue;
    serve(stream);
    close(stream);
  }
}
