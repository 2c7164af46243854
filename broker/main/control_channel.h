// The broker's end of a sandbox's control socket (ipc/control.h): it only ever
// sends, never blocks and never reads.
#pragma once
#include <kj/io.h>

#include <cstdint>
#include <vector>

#include "ipc/fdpass.h"
#include "ipc/guest.capnp.h"

namespace cordon::broker {

class ControlChannel {
 public:
  // Makes the pair. The agent's end is for CreateRequest::control.
  ControlChannel();
  kj::AutoCloseFd takeAgentEnd() { return kj::mv(agentEnd_); }

  // First and once. `filters`: as ipc/control.h has them.
  ipc::SendResult sendConfig(capnp::MessageBuilder& config, kj::ArrayPtr<const int> filters);
  ipc::SendResult sendStream(int fd);
  ipc::SendResult sendExec(uint32_t exec, const std::vector<int>& fds);
  ipc::SendResult sendForget(uint32_t exec);

  // EOF for the agent: it kills everything and exits. Sends say kPeerGone then.
  void close() {
    end_ = nullptr;
    agentEnd_ = nullptr;
  }

 private:
  kj::AutoCloseFd end_, agentEnd_;
};

}  // namespace cordon::broker
