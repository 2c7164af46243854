// The agent's end of the control socket (ipc/control.h).
#pragma once
#include <kj/array.h>
#include <kj/io.h>

#include <cstdint>
#include <vector>

#include "vm_agent/loop.h"

namespace cordon::agent {

class ControlHandler {
 public:
  // Exactly once, and before everything else.
  // `filters`: as ipc/control.h has them.
  virtual void onConfig(kj::ArrayPtr<const kj::byte> payload,
                        const std::vector<kj::AutoCloseFd>& filters) = 0;
  virtual void onStream(kj::AutoCloseFd fd) = 0;
  // `complete` false: some descriptors were lost (this process has too many).
  virtual void onLeaf(uint32_t exec, std::vector<kj::AutoCloseFd> fds, bool complete) = 0;
  virtual void onForget(uint32_t exec) = 0;
  // EOF (`why` is null), or something that a supervisor never sends: nothing may
  // go on.
  virtual void onSupervisorGone(const char* why) = 0;

 protected:
  ~ControlHandler() = default;
};

class Control {
 public:
  Control(Loop& loop, kj::AutoCloseFd fd, ControlHandler& handler);

  // Handles all that has arrived. A `start` is judged after this: the leaf of
  // its exec was sent before the start could be.
  void drain();

 private:
  // False: nothing more is there.
  bool receiveOne();

  ControlHandler& handler_;
  WatchedFd socket_;
  bool configured_ = false;
};

}  // namespace cordon::agent
