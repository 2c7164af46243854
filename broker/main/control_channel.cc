#include "broker/main/control_channel.h"

#include <capnp/serialize.h>
#include <kj/debug.h>
#include <string.h>
#include <sys/socket.h>

#include "ipc/control.h"

namespace cordon::broker {

namespace {
ipc::SendResult sendHeader(int socket, ipc::ControlHeader header, kj::ArrayPtr<const int> fds) {
  if (socket < 0) return ipc::SendResult::kPeerGone;
  return ipc::sendWithFds(
      socket, kj::arrayPtr(reinterpret_cast<const kj::byte*>(&header), sizeof(header)), fds);
}
}  // namespace

ControlChannel::ControlChannel() {
  auto pair = ipc::socketPair(SOCK_SEQPACKET);
  end_ = kj::mv(pair.a);
  agentEnd_ = kj::mv(pair.b);
}

ipc::SendResult ControlChannel::sendConfig(capnp::MessageBuilder& config,
                                           kj::ArrayPtr<const int> filters) {
  if (end_.get() < 0) return ipc::SendResult::kPeerGone;
  auto words = capnp::messageToFlatArray(config);
  auto body = words.asBytes();
  ipc::ControlHeader header{ipc::ControlKind::kConfig, 0};
  auto datagram = kj::heapArray<kj::byte>(sizeof(header) + body.size());
  KJ_REQUIRE(datagram.size() <= ipc::kMaxControlBytes, "configuration too large", body.size());
  memcpy(datagram.begin(), &header, sizeof(header));
  memcpy(datagram.begin() + sizeof(header), body.begin(), body.size());
  return ipc::sendWithFds(end_.get(), datagram, filters);
}

ipc::SendResult ControlChannel::sendStream(int fd) {
  return sendHeader(end_.get(), {ipc::ControlKind::kStream, 0}, kj::arrayPtr(&fd, 1));
}

ipc::SendResult ControlChannel::sendExec(uint32_t exec, const std::vector<int>& fds) {
  KJ_REQUIRE(fds.size() <= ipc::kMaxControlFds, "too many fds for one exec", fds.size());
  return sendHeader(end_.get(), {ipc::ControlKind::kExec, exec},
                    kj::arrayPtr(fds.data(), fds.size()));
}

ipc::SendResult ControlChannel::sendForget(uint32_t exec) {
  return sendHeader(end_.get(), {ipc::ControlKind::kForget, exec}, nullptr);
}

}  // namespace cordon::broker
