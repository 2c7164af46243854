// One gRPC server object per client uid, made when the uid first connects.
//
// gRPC gives a call no way to learn which connection it came on, so a server
// that only ever got connections of one uid is what says whose a call is.
// One thread (the acceptor's); never the loop thread, since ending a server
// waits for its calls.
#pragma once
#include <grpcpp/resource_quota.h>
#include <grpcpp/server.h>
#include <kj/io.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>

#include "frontend/agents/service.h"

namespace cordon::agents {

struct ServerLimits {
  size_t connections = 256;
  size_t connectionsPerUser = 64;
  size_t users = 64;
  std::chrono::seconds idle{60};  // without a connection, then a user's server goes
  int callsPerConnection = 128;
  bool oneTrustZone = false;
};

class Servers {
 public:
  Servers(Backend& backend, ExecCalls& calls, ServerLimits limits);
  ~Servers();
  KJ_DISALLOW_COPY(Servers);

  // Whether one more connection of this uid is within the limits.
  bool admits(uint32_t uid) const;
  // Hands a connection over to its uid's server, which owns the socket then.
  void add(uint32_t uid, kj::AutoCloseFd connection);
  // A connection that was added has ended.
  void ended(uint32_t uid);
  // There is a server object.
  bool anyUser() const { return !users_.empty(); }
  // Ends servers that have had no connection for ServerLimits::idle.
  void dropIdle();
  // How often that is worth a look.
  std::chrono::milliseconds idleCheck() const {
    return std::chrono::milliseconds(limits_.idle) / 2;
  }
  // Ends all of them; calls still open after `grace` are cancelled. Returns
  // when every call has ended.
  void shutdown(std::chrono::milliseconds grace);

 private:
  struct User {
    std::unique_ptr<AgentsService> service;
    std::unique_ptr<grpc::Server> server;  // goes before its service
    size_t connections = 0;
    std::chrono::steady_clock::time_point idleSince;
  };
  User& user(uint32_t uid);

  Backend& backend_;
  ExecCalls& calls_;
  const ServerLimits limits_;
  size_t connections_ = 0;
  std::map<uint32_t, User> users_;
};

}  // namespace cordon::agents
