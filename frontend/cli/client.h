// A client of cordon's gRPC API, as `cordon run`, the escape suite and the
// benchmark use it: blocking calls that return when the answer is complete.
//
// Threads: a Client may be used by several threads at once; each call blocks
// its own.
//
//   Client client(agentsAddress());
//   v1::SandboxSpec sandbox;
//   sandbox.set_runtime("runc");
//   v1::ExecSpec exec = command({"python3", "-c", "print(42)"});
//   Outcome outcome = client.run(sandbox, exec, {});
//   outcome.result.exit_code();        // 0
//   outcome.out.bytes;                 // "42\n"
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/agent.pb.h"

namespace cordon::client {

namespace v1 = cordon::v1;

// An error status of the API (or of the way to it). what() is the message.
class ApiError : public std::runtime_error {
 public:
  ApiError(std::string code, v1::ErrorDetail detail);
  const std::string& code() const { return codeName; }             // "INVALID_ARGUMENT"
  const std::string& reason() const { return fields.reason(); }    // "LIMIT_ZERO"; "" = none
  const std::string& subject() const { return fields.subject(); }  // "memoryBytes"; "" = none
  const v1::ErrorDetail& detail() const { return fields; }

 private:
  std::string codeName;
  v1::ErrorDetail fields;
};

// The reason of an ApiError made here, when nothing answers at the address.
inline constexpr const char* kNotReachable = "NOT_REACHABLE";
// The reason when a call was stopped by its stop token.
inline constexpr const char* kStopped = "STOPPED_BY_CALLER";
// The reason when a stream ended without a result.
inline constexpr const char* kNoResult = "NO_RESULT";
// The reason when what came is no message of the API.
inline constexpr const char* kBadResponse = "BAD_RESPONSE";

// CORDON_AGENTS ("unix:/path" or "/path"), or unix:/run/cordon/agents.sock.
std::string agentsAddress();

// An ExecSpec with this argv and nothing else set.
v1::ExecSpec command(const std::vector<std::string>& argv);

// What was collected of one output stream. The service keeps head and tail of
// what is past the cap: where `gapAt` is set, bytes are missing at that
// position of `bytes`.
struct Collected {
  std::string bytes;
  std::optional<uint64_t> gapAt;
  uint64_t notKept = 0;  // delivered to us, but past Streams::collectCap
};

// How the program's streams are served during exec() and run().
struct Streams {
  // Standard input: these bytes and then end of file, or what is read from
  // `stdinFd` until its end (borrowed; not read any more once the program has
  // ended). With neither, the program gets /dev/null. ExecSpec.stdin is set
  // from this.
  std::optional<std::string> stdinBytes;
  int stdinFd = -1;

  // Called for each chunk, or piece of one, in order, on the calling thread; a callback that
  // blocks stops the program's writes in the end (back-pressure). Null:
  // collected in Outcome.
  std::function<void(v1::OutputStream stream, uint64_t offset, std::string_view bytes)> onOutput;
  // Called when the program was started.
  std::function<void(const v1::Started&)> onStarted;
  // At most so many bytes are kept of each collected stream (the head).
  size_t collectCap = 64u << 20;

  // Signals to deliver: called once with a function that sends one to the
  // program's main process; it may be called from any thread until the call
  // has returned, and says false when the program could not be told.
  std::function<void(std::function<bool(int signal)>)> onSignalSender;

  // Cancels: the program is killed, and the call throws ApiError (kStopped).
  std::stop_token stop;
  // Cancels by itself after this long; zero: never.
  std::chrono::milliseconds timeout{0};
};

struct Outcome {
  v1::Result result;
  std::string name;  // the sandbox's
  Collected out, err;
  uint64_t outputMessages = 0;  // of the service, that brought output
  double totalMs = 0;           // of the whole call, our clock
};

class Client {
 public:
  explicit Client(std::string address,
                  std::chrono::milliseconds connectTimeout = std::chrono::seconds(2));
  ~Client();
  Client(Client&&) noexcept;
  Client& operator=(Client&&) noexcept;

  const std::string& address() const;

  // All throw ApiError.
  v1::AcquireResponse acquire(const v1::SandboxSpec& spec);
  // Also when the receipt is incomplete: look at complete().
  v1::Receipt release(const std::string& id);
  Outcome exec(const std::string& id, const v1::ExecSpec& spec, const Streams& streams = {});
  Outcome run(const v1::SandboxSpec& sandbox, const v1::ExecSpec& spec,
              const Streams& streams = {});
  // All of them, page by page.
  v1::ListResponse list();
  v1::ListResponse listPage(const v1::ListRequest& request);
  v1::SandboxInfo inspect(const std::string& id);
  v1::RuntimesResponse runtimes();
  v1::SnapshotResponse snapshot(const std::string& id);
  v1::ListSnapshotsResponse snapshots();
  void deleteSnapshot(const std::string& id);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl;
};

}  // namespace cordon::client
