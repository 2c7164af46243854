#include "vm_agent/stdin_pipe.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "ipc/guest.capnp.h"

namespace cordon::agent {

namespace {

// Credit goes back in pieces worth a message.
constexpr size_t kGrantStep = 16 * 1024;

}  // namespace

StdinPipe::StdinPipe(Loop& loop, std::function<void(uint32_t)> grant)
    : loop_(loop), grant_(std::move(grant)) {}

int StdinPipe::open(kj::AutoCloseFd& readEnd) {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) return errno;
  readEnd = kj::AutoCloseFd(fds[0]);
  kj::AutoCloseFd writeEnd(fds[1]);
  if (fcntl(writeEnd, F_SETFL, O_WRONLY | O_NONBLOCK) != 0) return errno;
  // Programs of another uid open /dev/stdin by name.
  fchmod(readEnd, 0644);
  pipe_.emplace(loop_, kj::mv(writeEnd), [this](uint32_t) { flush(); });
  credit_ = guest::STDIN_WINDOW;
  return 0;
}

bool StdinPipe::take(kj::ArrayPtr<const kj::byte> bytes) {
  if (bytes.size() > credit_) return false;
  credit_ -= bytes.size();
  // After closeStdin there is nothing to deliver to; nor once nobody reads.
  if (ending_ || gone_) {
    grant(bytes.size());
    return true;
  }
  pending_.insert(pending_.end(), bytes.begin(), bytes.end());
  flush();
  return true;
}

void StdinPipe::end() {
  ending_ = true;
  flush();
}

void StdinPipe::abandon() {
  ending_ = gone_ = true;
  pending_ = {};
  sent_ = 0;
  if (pipe_) pipe_->close();
}

void StdinPipe::flush() {
  if (gone_ || !pipe_ || !pipe_->isOpen()) return;
  size_t delivered = 0;
  while (sent_ < pending_.size()) {
    ssize_t n = write(pipe_->get(), pending_.data() + sent_, pending_.size() - sent_);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) break;
    if (n < 0) {
      grant(delivered);
      return discard();
    }
    sent_ += static_cast<size_t>(n);
    delivered += static_cast<size_t>(n);
  }
  bool all = sent_ == pending_.size();
  if (all) {
    pending_ = {};
    sent_ = 0;
  }
  // Not watched while there is nothing to write: it would always be ready.
  pipe_->watch(all ? 0u : uint32_t{EPOLLOUT});
  if (all && ending_) pipe_->close();
  grant(delivered);
}

void StdinPipe::discard() {
  size_t rest = pending_.size() - sent_;
  gone_ = true;
  pending_ = {};
  sent_ = 0;
  pipe_->close();
  grant(rest);
}

void StdinPipe::grant(size_t bytes) {
  granting_ += bytes;
  if (granting_ == 0 || (granting_ < kGrantStep && !pending_.empty())) return;
  size_t now = granting_;
  granting_ = 0;
  credit_ += now;
  grant_(static_cast<uint32_t>(now));
}

}  // namespace cordon::agent
