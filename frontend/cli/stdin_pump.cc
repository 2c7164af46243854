#include "frontend/cli/stdin_pump.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

namespace cordon::client {
namespace {
constexpr size_t kChunk = 64 << 10;
}

StdinPump::StdinPump(std::optional<std::string> bytes, int fd,
                     std::function<bool(std::string)> sendChunk, std::function<void()> atEnd)
    : send(std::move(sendChunk)), finish(std::move(atEnd)) {
  if (!bytes && fd < 0) return;
  wake = cli::makePipe();
  thread = std::thread([this, fd, given = std::move(bytes)] {
    if (given) {
      pumpBytes(*given);
    } else {
      pumpFd(fd);
    }
  });
}

StdinPump::~StdinPump() {
  stop();
}

void StdinPump::stop() {
  if (!thread.joinable()) return;
  wake.write = cli::Fd();
  thread.join();
}

void StdinPump::pumpBytes(const std::string& bytes) {
  for (size_t at = 0; at < bytes.size(); at += kChunk) {
    if (!send(bytes.substr(at, kChunk))) return;
  }
  finish();
}

void StdinPump::pumpFd(int fd) {
  std::vector<char> buffer(kChunk);
  while (true) {
    pollfd ready[2] = {{fd, POLLIN, 0}, {wake.read.get(), POLLIN, 0}};
    if (poll(ready, 2, -1) < 0) {
      if (errno == EINTR) continue;
      break;
    }
    if (ready[1].revents != 0) return;
    ssize_t count = read(fd, buffer.data(), buffer.size());
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (count <= 0) break;  // its end, or an input that can't be read
    if (!send(std::string(buffer.data(), size_t(count)))) return;
  }
  finish();
}

}  // namespace cordon::client
