// Where descriptors go that a sandbox sent and nobody asked for.
//
// To close one may take as long as its sender likes: a TCP socket with SO_LINGER
// waits for its peer, in whoever lets go of it last. So a thread of its own does
// it, started when there is something to close.
#pragma once
#include <kj/io.h>

#include <memory>
#include <vector>

namespace cordon::agents {

class DescriptorBin {
 public:
  DescriptorBin();
  // Never waits. What is not closed by then is left to the end of the process.
  ~DescriptorBin();
  KJ_DISALLOW_COPY(DescriptorBin);

  void drop(std::vector<kj::AutoCloseFd> fds);

  // Takes what waits to be read from a stream socket on which nothing more can
  // come (it was shut down), and drops the descriptors that came with it.
  void drain(int socket);

 private:
  struct Queue;
  std::shared_ptr<Queue> queue_;
};

}  // namespace cordon::agents
