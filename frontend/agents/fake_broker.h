// A test double of the broker, with scripted guests: a Cap'n Proto server in
// the test's process. It keeps sandboxes as entries in a map; what stands in
// for vm-agent is a function of the test, on a thread per stream.
#pragma once
#include <kj/io.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "frontend/link/loop_thread.h"
#include "ipc/broker.capnp.h"
#include "ipc/framing.h"
#include "ipc/guest.capnp.h"

namespace cordon::agents {

// The guest's end of a stream, blocking. Every send returns false when nobody
// reads any more.
class FakeGuest {
 public:
  explicit FakeGuest(int fd) : fd_(fd), reader_(guest::MAX_START_BYTES) {}

  // The `start` message, kept.
  struct Start {
    uint32_t exec = 0;
    std::vector<std::string> argv, env;
    std::string cwd, user;
    bool withStdin = false, explain = false;
    uint64_t fileSizeBytes = 0, files = 0, cpuTimeMs = 0, deadlineMs = 0, outputBytes = 0;
  };
  // Sends hello and waits for the start; nothing when the stream ended first.
  std::optional<Start> greet();

  // Calls `see` for the next message. False at the end of the stream.
  bool next(const std::function<void(guest::HostMessage::Reader)>& see);
  // Reads until a `kill` comes; false when the stream ended instead.
  bool waitForKill();

  bool send(const std::function<void(guest::GuestMessage::Builder)>& fill);
  bool raw(const void* data, size_t bytes);
  bool started() {
    return send([this](auto message) { message.setStarted(exec_); });
  }
  // The same with these descriptors.
  bool startedWith(const std::vector<int>& fds);
  // At the stream's next offset.
  bool output(unsigned stream, const std::string& bytes);
  bool outputAt(unsigned stream, uint64_t offset, const std::string& bytes);
  bool credit(uint32_t bytes);
  bool exited(bool signaled, uint32_t code,
              const std::function<void(guest::Exited::Builder)>& more = nullptr);
  bool failed(guest::FailStep step, uint32_t error);
  uint32_t exec() const { return exec_; }

 private:
  int fd_;
  ipc::FrameReader reader_;
  uint32_t exec_ = 0;
  uint64_t end_[2] = {0, 0};
};

struct FakeSandbox;
struct FakePort;

class FakeBroker {
 public:
  // Greets, then does what the test wants. When it returns the stream ends.
  using Script = std::function<void(FakeGuest&)>;

  explicit FakeBroker(const std::string& path);
  ~FakeBroker();

  void setScript(Script script);
  // Refuses the next acquire with this.
  void refuseAcquire(rpc::Code code, rpc::Reason reason, const std::string& detail);
  // Counters that beginExec and endExec report: kind, before, after.
  struct Counted {
    rpc::CounterKind kind;
    uint64_t before, after;
    std::string file;
  };
  void setCounters(std::vector<Counted> counters);

  // The limits that every sandbox gets where its spec has none.
  struct Defaults {
    uint64_t wallMs = 60'000, cpuTimeMs = 60'000, outputBytes = uint64_t{1} << 40,
             fileSizeBytes = 1 << 20, files = 256, memoryBytes = 128 << 20, pids = 64;
  };
  Defaults defaults;

  std::atomic<int> acquired{0}, destroyed{0}, begun{0}, ended{0}, killed{0}, inspected{0};
  std::atomic<int> streamsLost{0};  // of those ended
  // While set, the broker does not answer endExec.
  std::atomic<bool> endHangs{false};
  std::atomic<uint32_t> lastAcquireUid{0};

  struct Impl;

 private:
  friend struct Impl;
  friend struct FakeSandbox;
  friend struct FakePort;
  std::mutex mutex_;
  Script script_;
  std::vector<Counted> counters_;
  std::optional<std::tuple<rpc::Code, rpc::Reason, std::string>> refusal_;
  std::vector<std::thread> guests_;
  std::vector<int> guestFds_;  // to end scripts that still run
  std::string path_;
  link::LoopThread loop_;
  std::unique_ptr<Impl> impl_;  // on the loop
};

}  // namespace cordon::agents
