#include "frontend/cli/client.h"

#include <grpc/grpc.h>
#include <grpcpp/grpcpp.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <utility>

#include "frontend/cli/fd.h"
#include "frontend/cli/output_reader.h"
#include "frontend/cli/stdin_pump.h"
#include "ipc/agent.grpc.pb.h"

namespace cordon::client {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kWindow = 4 << 20;  // bytes of a stream that may be under way

const char* codeText(grpc::StatusCode code) {
  switch (code) {
    case grpc::StatusCode::OK:
      return "OK";
    case grpc::StatusCode::CANCELLED:
      return "CANCELLED";
    case grpc::StatusCode::INVALID_ARGUMENT:
      return "INVALID_ARGUMENT";
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return "DEADLINE_EXCEEDED";
    case grpc::StatusCode::NOT_FOUND:
      return "NOT_FOUND";
    case grpc::StatusCode::ALREADY_EXISTS:
      return "ALREADY_EXISTS";
    case grpc::StatusCode::PERMISSION_DENIED:
      return "PERMISSION_DENIED";
    case grpc::StatusCode::UNAUTHENTICATED:
      return "UNAUTHENTICATED";
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      return "RESOURCE_EXHAUSTED";
    case grpc::StatusCode::FAILED_PRECONDITION:
      return "FAILED_PRECONDITION";
    case grpc::StatusCode::ABORTED:
      return "ABORTED";
    case grpc::StatusCode::OUT_OF_RANGE:
      return "OUT_OF_RANGE";
    case grpc::StatusCode::UNIMPLEMENTED:
      return "UNIMPLEMENTED";
    case grpc::StatusCode::INTERNAL:
      return "INTERNAL";
    case grpc::StatusCode::UNAVAILABLE:
      return "UNAVAILABLE";
    case grpc::StatusCode::DATA_LOSS:
      return "DATA_LOSS";
    default:
      return "UNKNOWN";
  }
}

ApiError ownError(const char* code, const char* reason, std::string message, int error = 0) {
  v1::ErrorDetail detail;
  detail.set_reason(reason);
  detail.set_message(std::move(message));
  detail.set_error_number(error);
  return ApiError(code, std::move(detail));
}

ApiError fromStatus(const grpc::Status& status, const grpc::ClientContext& context) {
  v1::ErrorDetail detail;
  if (!detail.ParseFromString(status.error_details())) detail.Clear();
  if (detail.reason().empty()) {
    auto& trailing = context.GetServerTrailingMetadata();
    auto reason = trailing.find("cordon-reason");
    if (reason != trailing.end()) {
      detail.set_reason(std::string(reason->second.data(), reason->second.size()));
    }
  }
  if (detail.message().empty()) detail.set_message(status.error_message());
  if (detail.message().empty()) detail.set_message(codeText(status.error_code()));
  return ApiError(codeText(status.error_code()), std::move(detail));
}

// "unix:/path" of either form; throws where it is neither.
std::string normalized(const std::string& address) {
  std::string path = address.starts_with("unix:") ? address.substr(5) : address;
  if (!path.starts_with("/")) {
    throw ownError("INVALID_ARGUMENT", "BAD_ADDRESS",
                   "the service's address must be unix:/path or /path, not \"" + address + "\"");
  }
  if (path.size() >= sizeof(sockaddr_un::sun_path)) {
    throw ownError("INVALID_ARGUMENT", "BAD_ADDRESS",
                   "the path of the service's socket is longer than the " +
                       std::to_string(sizeof(sockaddr_un::sun_path) - 1) +
                       " bytes a unix socket may have: " + path);
  }
  return "unix:" + path;
}

// Why a connection to the socket is refused, or 0.
int connectError(const std::string& address) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  memcpy(name.sun_path, address.c_str() + 5, address.size() - 5);
  cli::Fd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) return errno;
  return connect(fd.get(), reinterpret_cast<sockaddr*>(&name), sizeof(name)) < 0 ? errno : 0;
}

class Collector {
 public:
  Collector(Collected& target, size_t most) : into(target), cap(most) {}
  void add(uint64_t offset, std::string_view bytes) {
    if (offset > next && !into.gapAt) into.gapAt = into.bytes.size();
    next = offset + bytes.size();
    size_t keep = std::min(bytes.size(), cap - std::min(cap, into.bytes.size()));
    into.bytes.append(bytes.substr(0, keep));
    into.notKept += bytes.size() - keep;
  }

 private:
  Collected& into;
  size_t cap;
  uint64_t next = 0;
};

// gRPC's own end, when the last of its objects goes, can wait 10 s for a poller
// that covers a write long done. The process's end has no such wait.
void keepLibrary() {
  static const bool kept = [] {
    grpc_init();
    return true;
  }();
  static_cast<void>(kept);
}

// Responses as they come: see output_reader.h.
using Call = grpc::ClientReaderWriterInterface<v1::ExecRequest, grpc::ByteBuffer>;

// The requests of one call: gRPC allows one write at a time.
class Requests {
 public:
  explicit Requests(Call& target) : call(target) {}
  bool send(const v1::ExecRequest& request) {
    std::lock_guard lock(mutex);
    return call.Write(request);
  }

 private:
  Call& call;
  std::mutex mutex;
};

// Outlives the call, in the hands of whoever sends signals.
struct SignalDoor {
  std::mutex mutex;
  Requests* requests = nullptr;
  bool send(int signal) {
    std::lock_guard lock(mutex);
    if (requests == nullptr) return false;
    v1::ExecRequest request;
    request.set_signal(signal);
    return requests->send(request);
  }
  void shut() {
    std::lock_guard lock(mutex);
    requests = nullptr;
  }
};

// Reads responses until the stream ends. False: there was no result.
bool receive(Call& call, const Streams& streams, Outcome& outcome) {
  Collector out(outcome.out, streams.collectCap), err(outcome.err, streams.collectCap);
  auto deliver = [&](v1::OutputStream stream, uint64_t offset, std::string_view bytes) {
    if (streams.onOutput) {
      streams.onOutput(stream, offset, bytes);
    } else {
      (stream == v1::STDERR ? err : out).add(offset, bytes);
    }
  };
  bool gotResult = false;
  grpc::ByteBuffer message;
  v1::ExecResponse response;
  while (call.Read(&message)) {
    if (readOutput(message, deliver)) {
      ++outcome.outputMessages;
      continue;
    }
    if (!grpc::SerializationTraits<v1::ExecResponse>::Deserialize(&message, &response).ok()) {
      throw ownError("INTERNAL", kBadResponse, "the service sent what is no response");
    }
    switch (response.message_case()) {
      case v1::ExecResponse::kStarted:
        outcome.name = response.started().name();
        if (streams.onStarted) streams.onStarted(response.started());
        break;
      case v1::ExecResponse::kOutput:
        ++outcome.outputMessages;
        deliver(response.output().stream(), response.output().offset(), response.output().data());
        break;
      case v1::ExecResponse::kResult:
        outcome.result = response.result();
        gotResult = true;
        break;
      case v1::ExecResponse::MESSAGE_NOT_SET:
        break;  // of a newer service
    }
  }
  return gotResult;
}

}  // namespace

ApiError::ApiError(std::string code, v1::ErrorDetail detail)
    : std::runtime_error(detail.message()), codeName(std::move(code)), fields(std::move(detail)) {}

std::string agentsAddress() {
  const char* set = getenv("CORDON_AGENTS");
  return set != nullptr && *set != '\0' ? set : "unix:/run/cordon/agents.sock";
}

v1::ExecSpec command(const std::vector<std::string>& argv) {
  v1::ExecSpec spec;
  for (const std::string& argument : argv) spec.add_argv(argument);
  return spec;
}

struct Client::Impl {
  std::string address;
  std::chrono::milliseconds connectTimeout;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::Agents::Stub> stub;

  // Waits for the connection; the first failure says why and ends the wait.
  void connect() {
    auto deadline = std::chrono::system_clock::now() + connectTimeout;
    while (true) {
      grpc_connectivity_state state = channel->GetState(true);
      if (state == GRPC_CHANNEL_READY) return;
      if (state == GRPC_CHANNEL_TRANSIENT_FAILURE || state == GRPC_CHANNEL_SHUTDOWN) {
        if (int error = connectError(address); error != 0) throw notReachable(error);
      }
      if (!channel->WaitForStateChange(state, deadline)) {
        int error = connectError(address);
        throw notReachable(error != 0 ? error : ETIMEDOUT);
      }
    }
  }

  ApiError notReachable(int error) const {
    std::string message =
        "no cordon service answers at " + address + ": " + strerror(error) +
        (error == EACCES
             ? "; this user is not in the group that may use it"
             : "; start one with `cordon up --state DIR` and set CORDON_AGENTS=DIR/agents.sock");
    return ownError("UNAVAILABLE", kNotReachable, std::move(message), error);
  }

  template <class Request, class Response>
  Response unary(grpc::Status (v1::Agents::Stub::*method)(grpc::ClientContext*, const Request&,
                                                          Response*),
                 const Request& request) {
    connect();
    grpc::ClientContext context;
    Response response;
    grpc::Status status = (stub.get()->*method)(&context, request, &response);
    if (!status.ok()) throw fromStatus(status, context);
    return response;
  }

  Outcome converse(bool run, v1::ExecRequest first, const Streams& streams);
};

Outcome Client::Impl::converse(bool run, v1::ExecRequest first, const Streams& streams) {
  auto begin = Clock::now();
  connect();
  grpc::ClientContext context;
  context.set_initial_metadata_corked(true);  // goes with the first request
  if (streams.timeout.count() > 0) {
    context.set_deadline(std::chrono::system_clock::now() + streams.timeout);
  }
  std::stop_callback cancel(streams.stop, [&] { context.TryCancel(); });
  // What the stub does, but for the type of what is read.
  grpc::internal::RpcMethod method(run ? "/cordon.v1.Agents/Run" : "/cordon.v1.Agents/Exec",
                                   grpc::internal::RpcMethod::BIDI_STREAMING);
  using Calls = grpc::internal::ClientReaderWriterFactory<v1::ExecRequest, grpc::ByteBuffer>;
  std::unique_ptr<Call> call(Calls::Create(channel.get(), method, &context));
  Requests requests(*call);
  requests.send(first);

  auto door = std::make_shared<SignalDoor>();
  door->requests = &requests;
  if (streams.onSignalSender) {
    streams.onSignalSender([door](int signal) { return door->send(signal); });
  }

  Outcome outcome;
  bool gotResult = false;
  grpc::Status status;
  {
    StdinPump pump(
        streams.stdinBytes, streams.stdinFd,
        [&](std::string bytes) {
          v1::ExecRequest request;
          request.set_stdin(std::move(bytes));
          return requests.send(request);
        },
        [&] {
          v1::ExecRequest request;
          request.set_close_stdin(true);
          requests.send(request);
        });
    // Whatever ends this scope, no write may be left waiting for the service.
    auto wrapUp = [&] {
      status = call->Finish();
      context.TryCancel();
      pump.stop();
      door->shut();
    };
    try {
      gotResult = receive(*call, streams, outcome);
    } catch (...) {
      context.TryCancel();
      wrapUp();
      throw;
    }
    wrapUp();
  }
  if (streams.stop.stop_requested() && !(status.ok() && gotResult)) {
    throw ownError("CANCELLED", kStopped, "cancelled; the program was killed");
  }
  if (!status.ok()) throw fromStatus(status, context);
  if (!gotResult) throw ownError("INTERNAL", kNoResult, "the service sent no result");
  outcome.totalMs = std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
  return outcome;
}

Client::Client(std::string address, std::chrono::milliseconds connectTimeout)
    : impl(std::make_unique<Impl>()) {
  keepLibrary();
  impl->address = normalized(address);
  impl->connectTimeout = connectTimeout;
  grpc::ChannelArguments arguments;
  // A connection of its own per client, and none of the host's proxies.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetMaxReceiveMessageSize(16 << 20);
  // The service is on this machine: a window that is large from the start, and
  // no pings that measure how large it should be.
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kWindow);
  impl->channel =
      grpc::CreateCustomChannel(impl->address, grpc::InsecureChannelCredentials(), arguments);
  impl->stub = v1::Agents::NewStub(impl->channel);
}

Client::~Client() = default;
Client::Client(Client&&) noexcept = default;
Client& Client::operator=(Client&&) noexcept = default;

const std::string& Client::address() const {
  return impl->address;
}

v1::AcquireResponse Client::acquire(const v1::SandboxSpec& spec) {
  v1::AcquireRequest request;
  *request.mutable_spec() = spec;
  return impl->unary(&v1::Agents::Stub::Acquire, request);
}

v1::Receipt Client::release(const std::string& id) {
  v1::ReleaseRequest request;
  request.set_id(id);
  return impl->unary(&v1::Agents::Stub::Release, request).receipt();
}

v1::ListResponse Client::list() {
  v1::ListResponse all;
  v1::ListRequest request;
  do {
    v1::ListResponse page = listPage(request);
    all.mutable_sandboxes()->MergeFrom(page.sandboxes());
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  return all;
}

v1::ListResponse Client::listPage(const v1::ListRequest& request) {
  return impl->unary(&v1::Agents::Stub::List, request);
}

v1::SandboxInfo Client::inspect(const std::string& id) {
  v1::InspectRequest request;
  request.set_id(id);
  return impl->unary(&v1::Agents::Stub::Inspect, request).sandbox();
}

v1::RuntimesResponse Client::runtimes() {
  return impl->unary(&v1::Agents::Stub::Runtimes, v1::RuntimesRequest());
}

v1::SnapshotResponse Client::snapshot(const std::string& id) {
  v1::SnapshotRequest request;
  request.set_id(id);
  return impl->unary(&v1::Agents::Stub::Snapshot, request);
}

v1::ListSnapshotsResponse Client::snapshots() {
  return impl->unary(&v1::Agents::Stub::ListSnapshots, v1::ListSnapshotsRequest());
}

void Client::deleteSnapshot(const std::string& id) {
  v1::DeleteSnapshotRequest request;
  request.set_id(id);
  impl->unary(&v1::Agents::Stub::DeleteSnapshot, request);
}

Outcome Client::exec(const std::string& id, const v1::ExecSpec& spec, const Streams& streams) {
  v1::ExecRequest first;
  first.mutable_start()->set_id(id);
  *first.mutable_start()->mutable_exec() = spec;
  first.mutable_start()->mutable_exec()->set_stdin(streams.stdinBytes || streams.stdinFd >= 0);
  return impl->converse(false, std::move(first), streams);
}

Outcome Client::run(const v1::SandboxSpec& sandbox, const v1::ExecSpec& spec,
                    const Streams& streams) {
  v1::ExecRequest first;
  *first.mutable_run()->mutable_sandbox() = sandbox;
  *first.mutable_run()->mutable_exec() = spec;
  first.mutable_run()->mutable_exec()->set_stdin(streams.stdinBytes || streams.stdinFd >= 0);
  return impl->converse(true, std::move(first), streams);
}

}  // namespace cordon::client
