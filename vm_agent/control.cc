#include "vm_agent/control.h"

#include <kj/debug.h>

#include <cstring>

#include "ipc/control.h"
#include "ipc/fdpass.h"

namespace cordon::agent {

Control::Control(Loop& loop, kj::AutoCloseFd fd, ControlHandler& handler)
    : handler_(handler), socket_(loop, kj::mv(fd), [this](uint32_t) { drain(); }) {
  socket_.watch(EPOLLIN);
}

void Control::drain() {
  while (receiveOne()) {
  }
}

bool Control::receiveOne() {
  // Only the configuration is long, and it is the first.
  ipc::ControlHeader header;
  kj::Array<kj::byte> large;
  kj::ArrayPtr<kj::byte> buffer(reinterpret_cast<kj::byte*>(&header), sizeof(header));
  if (!configured_) {
    large = kj::heapArray<kj::byte>(ipc::kMaxControlBytes);
    buffer = large;
  }
  auto result = ipc::receiveWithFds(socket_.get(), buffer, ipc::kMaxControlFds);
  if (result == nullptr) return false;
  auto& received = KJ_ASSERT_NONNULL(result);
  auto bytes = static_cast<size_t>(received.bytes);
  if (bytes == 0) {
    handler_.onSupervisorGone(nullptr);
    return false;
  }
  if (bytes < sizeof(header)) {
    handler_.onSupervisorGone("malformed control message");
    return false;
  }
  memcpy(&header, buffer.begin(), sizeof(header));

  auto& fds = received.fds;
  bool known = true;
  if (!configured_) {
    known = header.kind == ipc::ControlKind::kConfig && !received.truncated && fds.size() <= 2;
    if (known) {
      configured_ = true;
      handler_.onConfig(buffer.slice(sizeof(header), bytes), fds);
    }
  } else if (header.kind == ipc::ControlKind::kStream) {
    // Without its descriptor (too many open) the frontend sees EOF and asks again.
    if (fds.size() == 1) handler_.onStream(kj::mv(fds[0]));
  } else if (header.kind == ipc::ControlKind::kExec) {
    handler_.onLeaf(header.exec, kj::mv(fds), !received.truncated);
  } else if (header.kind == ipc::ControlKind::kForget) {
    handler_.onForget(header.exec);
  } else {
    known = false;
  }
  if (!known) handler_.onSupervisorGone("unexpected control message");
  return known;
}

}  // namespace cordon::agent
