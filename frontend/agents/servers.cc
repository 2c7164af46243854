#include "frontend/agents/servers.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/server_posix.h>
#include <kj/debug.h>
#include <sys/socket.h>

namespace cordon::agents {
namespace {

// A start message of 1 MiB and stdin messages fit well; what is larger gets
// RESOURCE_EXHAUSTED from gRPC, and up to there our own, better answer.
constexpr int kLargestRequest = 4 * 1024 * 1024;
constexpr int kLargestMetadata = 16 * 1024;
constexpr size_t kRequestMemory = 256 * 1024 * 1024;  // of one user's requests together
// Reflection is a synchronous service: each open stream of it has a thread. Past
// these it answers RESOURCE_EXHAUSTED.
constexpr int kSyncThreads = 8;
constexpr int kKeepaliveMs = 60 * 1000;
constexpr int kKeepaliveTimeoutMs = 20 * 1000;
constexpr int kPingsAtLeastEveryMs = 5 * 1000;
constexpr int kFrame = 1024 * 1024;
// The kernel doubles it, and cuts it to net.core.wmem_max. Each time that the
// socket is full costs a thread's wake-up.
constexpr int kSendBuffer = 256 * 1024;

}  // namespace

Servers::Servers(Backend& backend, ExecCalls& calls, ServerLimits limits)
    : backend_(backend), calls_(calls), limits_(limits) {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
}

Servers::~Servers() {
  shutdown(std::chrono::milliseconds(0));
}

bool Servers::admits(uint32_t uid) const {
  if (connections_ >= limits_.connections) return false;
  auto found = users_.find(uid);
  if (found == users_.end()) return users_.size() < limits_.users;
  return found->second.connections < limits_.connectionsPerUser;
}

void Servers::add(uint32_t uid, kj::AutoCloseFd connection) {
  auto& to = user(uid);
  // Best effort: without it, output is only slower.
  setsockopt(connection, SOL_SOCKET, SO_SNDBUF, &kSendBuffer, sizeof(kSendBuffer));
  grpc::AddInsecureChannelFromFd(to.server.get(), connection.release());
  ++connections_;
  ++to.connections;
}

void Servers::ended(uint32_t uid) {
  auto& from = users_.at(uid);
  --connections_;
  if (--from.connections == 0) from.idleSince = std::chrono::steady_clock::now();
}

Servers::User& Servers::user(uint32_t uid) {
  auto found = users_.find(uid);
  if (found != users_.end()) return found->second;
  User made;
  made.service = std::make_unique<AgentsService>(backend_, calls_, uid, limits_.oneTrustZone);
  grpc::ResourceQuota quota("uid " + std::to_string(uid));
  quota.Resize(kRequestMemory);
  quota.SetMaxThreads(kSyncThreads);
  grpc::ServerBuilder builder;
  builder.RegisterService(made.service.get())
      .SetResourceQuota(quota)
      .SetMaxReceiveMessageSize(kLargestRequest)
      // The size limit is on what arrives: four compressed MiB could be four GiB.
      .SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false)
      .SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false)
      .AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0)
      .AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, limits_.callsPerConnection)
      .AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kLargestMetadata)
      .AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs)
      .AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs)
      .AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                          kPingsAtLeastEveryMs)
      .AddChannelArgument(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, kFrame)
      // A client that pings too often would be told so for each of the pings that
      // it has sent by then, at 3 KiB each. Plain answers are few and small: past
      // 10,000 that it does not read nothing more is read from it.
      .AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0)
      // A ping beside every burst of data, to find the delay of a link that has none.
      .AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0)
      .SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::NUM_CQS, 1)
      .SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::MIN_POLLERS, 1)
      .SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::MAX_POLLERS, 1);
  made.server = builder.BuildAndStart();
  KJ_REQUIRE(made.server != nullptr, "gRPC could not start a server");
  return users_.emplace(uid, std::move(made)).first->second;
}

void Servers::dropIdle() {
  auto now = std::chrono::steady_clock::now();
  for (auto it = users_.begin(); it != users_.end();) {
    auto& candidate = it->second;
    if (candidate.connections == 0 && now - candidate.idleSince > limits_.idle) {
      candidate.server->Shutdown(std::chrono::system_clock::now());
      it = users_.erase(it);
    } else {
      ++it;
    }
  }
}

void Servers::shutdown(std::chrono::milliseconds grace) {
  auto deadline = std::chrono::system_clock::now() + grace;
  for (auto& [uid, leaving] : users_) leaving.server->Shutdown(deadline);
  users_.clear();
}

}  // namespace cordon::agents
