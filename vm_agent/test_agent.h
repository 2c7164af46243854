// Drives the real vm-agent over real sockets, for the tests.
#pragma once
#include <capnp/message.h>
#include <kj/io.h>
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ipc/control.h"
#include "ipc/framing.h"
#include "ipc/guest.capnp.h"

namespace cordon::agent::testing {

constexpr int kPatienceMs = 20 * 1000;

// What an exec came to, as far as messages told.
struct Outcome {
  bool started = false;
  bool exited = false;
  bool failed = false;
  int error = 0;
  guest::FailStep step = guest::FailStep::REQUEST;

  bool signaled = false;
  uint32_t code = 0;
  uint64_t wallUs = 0, userUs = 0, maxRssBytes = 0;
  guest::KilledBy killedBy = guest::KilledBy::NOBODY;
  uint32_t leftRunning = 0;
  uint64_t total[2] = {}, dropped[2] = {}, left[2] = {};
  std::string fileAtLimit;
  std::vector<std::pair<std::string, uint64_t>> scratch;  // path, total bytes

  // Chunks by offset, and everything of both in order of arrival.
  std::map<uint64_t, std::string> chunks[2];
  bool overlapping = false;
  uint64_t credit = 0;
  std::string text(int stream = 0) const;
  bool over() const { return exited || failed; }
};

struct Request {
  std::vector<std::string> argv;
  std::vector<std::string> env = {"PATH=/usr/local/bin:/usr/bin:/bin"};
  std::string cwd;
  std::string user;
  uint64_t fileSizeBytes = 0, cpuTimeMs = 0, deadlineMs = 0, outputBytes = 0;
  uint32_t files = 0;
  bool stdin = false, explain = false;
};

Request shell(const std::string& script);

class TestStream {
 public:
  explicit TestStream(kj::AutoCloseFd fd) : fd_(kj::mv(fd)), reader_(guest::MAX_FRAME_BYTES) {}

  void send(const std::function<void(guest::HostMessage::Builder)>& fill);
  void sendRaw(const std::string& bytes);
  void start(uint32_t exec, const Request& request);
  bool stdin(uint32_t exec, const std::string& bytes);
  void closeStdin(uint32_t exec);
  void signal(uint32_t exec, uint32_t signo);
  void kill(uint32_t exec);

  // Reads messages until `enough`, EOF or a long time is over; true when
  // `enough` said so.
  bool readUntil(const std::function<bool()>& enough, int patienceMs = kPatienceMs);
  bool waitOver(uint32_t exec);
  bool waitStarted(uint32_t exec);
  bool waitHello();
  // EOF from the agent.
  bool waitClosed();
  Outcome& operator[](uint32_t exec) { return outcomes_[exec]; }
  int fd() const { return fd_; }
  void close() { fd_ = nullptr; }
  bool malformed() const { return malformed_; }

 private:
  void take(guest::GuestMessage::Reader message);

  kj::AutoCloseFd fd_;
  ipc::FrameReader reader_;
  std::map<uint32_t, Outcome> outcomes_;
  bool hello_ = false;
  bool eof_ = false;
  bool malformed_ = false;
};

struct AgentOptions {
  std::function<void(guest::AgentConfig::Builder)> configure;
  bool sendConfig = true;
  // The program file has mode 0111, as a sandbox's has.
  bool executeOnly = false;
  int profile = -1;  // a BPF program
  // Run in the forked child, before and after `afterFork`.
  std::function<void()> prepare, beforeExec;
  // Namespaces to fork into (CLONE_NEWPID…); 0: none.
  uint64_t namespaces = 0;
  // Runs in the parent when `prepare` has returned.
  std::function<void(pid_t child)> afterFork;
};

// One vm-agent and its control socket. Its processes, temporary directory and
// sockets are gone after destruction.
class TestAgent {
 public:
  explicit TestAgent(AgentOptions options = {});
  ~TestAgent() noexcept(false);
  KJ_DISALLOW_COPY(TestAgent);

  std::unique_ptr<TestStream> connect();
  void announce(uint32_t exec, const std::vector<int>& fds = {});
  void control(ipc::ControlKind kind, uint32_t exec, const std::vector<int>& fds,
               const std::string& payload = "");
  void controlRaw(const std::string& datagram);
  void closeControl() { control_ = nullptr; }
  // Waits for the agent's end; nothing when it doesn't come.
  std::optional<int> waitExit(int patienceMs = kPatienceMs);
  // Announces and runs one exec on a stream of its own.
  Outcome run(const Request& request);

  pid_t pid() const { return pid_; }
  const std::string& workDir() const { return workDir_; }
  uint32_t nextExec() { return ++lastExec_; }

 private:
  kj::AutoCloseFd control_;
  std::string workDir_;
  pid_t pid_ = 0;
  std::optional<int> status_;
  uint32_t lastExec_ = 0;
};

// True when `condition` holds within the patience.
bool eventually(const std::function<bool()>& condition, int patienceMs = kPatienceMs);
std::string readFile(const std::string& path);
// The value of a line "Key:\tvalue" of /proc/PID/status or smaps_rollup.
std::string field(const std::string& text, const std::string& key);
bool alive(pid_t pid);

}  // namespace cordon::agent::testing
