#include "frontend/agents/descriptor_bin.h"

#include <kj/debug.h>
#include <sys/socket.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "ipc/fdpass.h"

namespace cordon::agents {

namespace {

// More than a socket's buffer holds, in reads of this size.
constexpr size_t kDrainBytes = 64 * 1024;
constexpr int kMostReads = 1024;

}  // namespace

struct DescriptorBin::Queue {
  std::mutex mutex;
  std::condition_variable filled;
  std::deque<kj::AutoCloseFd> fds;
  bool running = false, ending = false;

  void closeAll() {
    std::unique_lock lock(mutex);
    while (!ending) {
      filled.wait(lock, [this] { return ending || !fds.empty(); });
      if (fds.empty()) continue;
      auto fd = kj::mv(fds.front());
      fds.pop_front();
      lock.unlock();
      // Nearly always enough for it not to wait at all.
      const linger none = {0, 0};
      setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof(none));
      fd = nullptr;
      lock.lock();
    }
  }
};

DescriptorBin::DescriptorBin() : queue_(std::make_shared<Queue>()) {}

DescriptorBin::~DescriptorBin() {
  std::lock_guard lock(queue_->mutex);
  queue_->ending = true;
  queue_->filled.notify_all();
}

void DescriptorBin::drop(std::vector<kj::AutoCloseFd> fds) {
  std::lock_guard lock(queue_->mutex);
  for (auto& fd : fds) queue_->fds.push_back(kj::mv(fd));
  if (!queue_->running) {
    std::thread([queue = queue_] { queue->closeAll(); }).detach();
    queue_->running = true;
  }
  queue_->filled.notify_all();
}

void DescriptorBin::drain(int socket) {
  kj::byte first[1];
  kj::ArrayPtr<kj::byte> buffer(first, sizeof(first));
  kj::Array<kj::byte> large;
  for (int i = 0; i < kMostReads; ++i) {
    auto received = ipc::receiveWithFds(socket, buffer, ipc::kMostFdsAtOnce);
    KJ_IF_MAYBE (got, received) {
      if (!got->fds.empty()) drop(std::move(got->fds));
      if (got->bytes == 0) return;
    } else {
      return;
    }
    if (large == nullptr) buffer = large = kj::heapArray<kj::byte>(kDrainBytes);
  }
}

}  // namespace cordon::agents
