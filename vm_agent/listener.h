// How the listener of an explained exec gets to the agent.
//
// Loading the filter makes it, in the process that is under that filter from
// then on: with a profile without sendmsg, passing it on would be asked about,
// and nobody could answer yet. So a courier does: a second process, under the
// agent's filter alone, that shares the child's table of descriptors and no
// memory. All of this runs in the child, after the fork: async-signal-safe.
#pragma once
#include <sys/types.h>

namespace cordon::agent {

class Courier {
 public:
  // Forks it. `socket` (SOCK_SEQPACKET) leads to the agent. It keeps the uid of
  // now, so it is to be started under the agent's, where no program can signal
  // it. Uses three descriptors. errno, or 0.
  int start(int socket);
  // Has `listener` sent, as the one descriptor of a datagram of one byte, and
  // waits until the courier is gone. errno, or 0.
  int deliver(int listener) const;

 private:
  pid_t pid_ = -1;
  int order_ = -1;  // eventfd: the listener's number
};

}  // namespace cordon::agent
