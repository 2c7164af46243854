// Accepts clients, learns their uid from the kernel, hands them to the server
// of that uid, and knows when they have gone. The main thread's loop.
#pragma once
#include <kj/io.h>
#include <spdlog/logger.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <unordered_map>

#include "frontend/agents/servers.h"

namespace cordon::agents {

class Acceptor {
 public:
  // `listener`: a listening unix stream socket. `signals`: a signalfd whose
  // first signal ends run().
  Acceptor(Servers& servers, kj::AutoCloseFd listener, kj::AutoCloseFd signals,
           std::shared_ptr<spdlog::logger> log);
  KJ_DISALLOW_COPY(Acceptor);

  // Serves until a signal comes; returns its number.
  int run();

 private:
  using Clock = std::chrono::steady_clock;

  // A duplicate of a connection's socket that only tells when it ends: gRPC
  // shuts a socket down before it closes it.
  struct Connection {
    kj::AutoCloseFd watch;
    uint32_t uid;
  };

  void acceptAll();
  void accept(kj::AutoCloseFd connection);
  void warnFull(uint32_t uid);
  void listen(bool on);
  int timeoutMs() const;
  int takeSignal();

  Servers& servers_;
  kj::AutoCloseFd listener_, signals_, epoll_;
  std::shared_ptr<spdlog::logger> log_;
  bool listening_ = false;
  uint64_t next_;
  Clock::time_point resumeAt_;     // while not listening_
  Clock::time_point idleCheckAt_;  // of the servers
  Clock::time_point warned_;
  std::unordered_map<uint64_t, Connection> connections_;
};

}  // namespace cordon::agents
