#include "vm_agent/test_agent.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <kj/debug.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "ipc/fdpass.h"

namespace cordon::agent::testing {

namespace {

using Clock = std::chrono::steady_clock;

capnp::Data::Reader data(const std::string& text) {
  return {reinterpret_cast<const kj::byte*>(text.data()), text.size()};
}

const char* agentPath() {
  const char* path = getenv("VM_AGENT");
  KJ_REQUIRE(path != nullptr, "VM_AGENT names the vm-agent to test (meson test sets it)");
  return path;
}

}  // namespace

bool eventually(const std::function<bool()>& condition, int patienceMs) {
  auto until = Clock::now() + std::chrono::milliseconds(patienceMs);
  while (!condition()) {
    if (Clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

std::string readFile(const std::string& path) {
  std::ifstream in(path);
  std::stringstream all;
  all << in.rdbuf();
  return all.str();
}

std::string field(const std::string& text, const std::string& key) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind(key + ":", 0) != 0) continue;
    size_t at = line.find_first_not_of(" \t", key.size() + 1);
    return at == std::string::npos ? "" : line.substr(at);
  }
  return "(none)";
}

bool alive(pid_t pid) {
  std::string stat = readFile("/proc/" + std::to_string(pid) + "/stat");
  size_t close = stat.rfind(") ");
  return close != std::string::npos && stat[close + 2] != 'Z' && stat[close + 2] != 'X';
}

std::string Outcome::text(int stream) const {
  std::string all;
  for (auto& [offset, bytes] : chunks[stream]) all += bytes;
  return all;
}

Request shell(const std::string& script) {
  Request request;
  request.argv = {"sh", "-c", script};
  return request;
}

// ---------------------------------------------------------------------------

void TestStream::sendRaw(const std::string& bytes) {
  size_t sent = 0;
  while (sent < bytes.size()) {
    ssize_t n = ::send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;  // the agent closed it: the test will see EOF
    sent += static_cast<size_t>(n);
  }
}

void TestStream::send(const std::function<void(guest::HostMessage::Builder)>& fill) {
  capnp::MallocMessageBuilder message;
  fill(message.initRoot<guest::HostMessage>());
  auto frame = ipc::frameMessage(message);
  auto bytes = frame.asBytes();
  sendRaw({reinterpret_cast<const char*>(bytes.begin()), bytes.size()});
}

void TestStream::start(uint32_t exec, const Request& request) {
  send([&](guest::HostMessage::Builder message) {
    auto start = message.initStart();
    start.setExec(exec);
    auto argv = start.initArgv(static_cast<uint32_t>(request.argv.size()));
    for (uint32_t i = 0; i < argv.size(); ++i) argv.set(i, data(request.argv[i]));
    auto env = start.initEnv(static_cast<uint32_t>(request.env.size()));
    for (uint32_t i = 0; i < env.size(); ++i) env.set(i, data(request.env[i]));
    start.setCwd(data(request.cwd));
    start.setUser(request.user);
    start.setFileSizeBytes(request.fileSizeBytes);
    start.setFiles(request.files);
    start.setCpuTimeMs(request.cpuTimeMs);
    start.setDeadlineMs(request.deadlineMs);
    start.setOutputBytes(request.outputBytes);
    start.setStdin(request.stdin);
    start.setExplain(request.explain);
  });
}

bool TestStream::stdin(uint32_t exec, const std::string& bytes) {
  send([&](guest::HostMessage::Builder message) {
    auto in = message.initStdin();
    in.setExec(exec);
    in.setBytes(data(bytes));
  });
  return !eof_;
}

void TestStream::closeStdin(uint32_t exec) {
  send([&](guest::HostMessage::Builder message) { message.setCloseStdin(exec); });
}

void TestStream::signal(uint32_t exec, uint32_t signo) {
  send([&](guest::HostMessage::Builder message) {
    auto signal = message.initSignal();
    signal.setExec(exec);
    signal.setSigno(signo);
  });
}

void TestStream::kill(uint32_t exec) {
  send([&](guest::HostMessage::Builder message) { message.setKill(exec); });
}

void TestStream::take(guest::GuestMessage::Reader message) {
  switch (message.which()) {
    case guest::GuestMessage::HELLO:
      hello_ = message.getHello().getVersion() == guest::PROTOCOL_VERSION;
      return;
    case guest::GuestMessage::STARTED:
      outcomes_[message.getStarted()].started = true;
      return;
    case guest::GuestMessage::OUTPUT: {
      auto output = message.getOutput();
      auto& outcome = outcomes_[output.getExec()];
      auto bytes = output.getBytes();
      auto& chunks = outcome.chunks[output.getStream() == guest::OutputStream::STDOUT ? 0 : 1];
      if (!chunks.empty()) {
        auto& [offset, last] = *chunks.rbegin();
        outcome.overlapping |= output.getOffset() < offset + last.size();
      }
      outcome.overlapping |= outcome.over() || bytes.size() > guest::MAX_OUTPUT_CHUNK;
      chunks[output.getOffset()] = {reinterpret_cast<const char*>(bytes.begin()), bytes.size()};
      return;
    }
    case guest::GuestMessage::STDIN_CREDIT:
      outcomes_[message.getStdinCredit().getExec()].credit += message.getStdinCredit().getBytes();
      return;
    case guest::GuestMessage::EXITED: {
      auto exited = message.getExited();
      auto& outcome = outcomes_[exited.getExec()];
      malformed_ |= outcome.over();
      outcome.exited = true;
      outcome.signaled = exited.getSignaled();
      outcome.code = exited.getCode();
      outcome.wallUs = exited.getWallUs();
      outcome.userUs = exited.getUserUs();
      outcome.maxRssBytes = exited.getMaxRssBytes();
      outcome.killedBy = exited.getKilledBy();
      outcome.leftRunning = exited.getLeftRunning();
      const guest::StreamTotals::Reader totals[] = {exited.getStdout(), exited.getStderr()};
      for (int i = 0; i < 2; ++i) {
        outcome.total[i] = totals[i].getTotal();
        outcome.dropped[i] = totals[i].getDropped();
        outcome.left[i] = totals[i].getLeft();
      }
      outcome.fileAtLimit = exited.getFileAtLimit();
      for (auto scratch : exited.getScratch()) {
        outcome.scratch.emplace_back(scratch.getPath().cStr(), scratch.getTotalBytes());
      }
      return;
    }
    case guest::GuestMessage::FAILED: {
      auto failed = message.getFailed();
      auto& outcome = outcomes_[failed.getExec()];
      malformed_ |= outcome.over();
      outcome.failed = true;
      outcome.error = static_cast<int>(failed.getErrno());
      outcome.step = failed.getStep();
      return;
    }
  }
  malformed_ = true;
}

bool TestStream::readUntil(const std::function<bool()>& enough, int patienceMs) {
  auto until = Clock::now() + std::chrono::milliseconds(patienceMs);
  while (!enough()) {
    if (eof_) return false;
    auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now());
    if (left.count() <= 0) return false;
    pollfd poller = {fd_, POLLIN, 0};
    if (poll(&poller, 1, static_cast<int>(left.count())) <= 0) continue;
    auto space = reader_.space();
    KJ_REQUIRE(space.size() > 0, "the agent sent a malformed frame");
    ssize_t got = recv(fd_, space.begin(), space.size(), MSG_DONTWAIT);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got <= 0) {
      eof_ = true;
      continue;
    }
    reader_.commit(static_cast<size_t>(got));
    for (;;) {
      auto frame = reader_.next();
      if (frame == nullptr) break;
      KJ_IF_MAYBE (words, frame) {
        capnp::FlatArrayMessageReader message(*words, ipc::readerOptions(words->asBytes().size()));
        take(message.getRoot<guest::GuestMessage>());
      }
    }
  }
  return true;
}

bool TestStream::waitOver(uint32_t exec) {
  return readUntil([&]() { return outcomes_[exec].over(); });
}

bool TestStream::waitStarted(uint32_t exec) {
  return readUntil([&]() { return outcomes_[exec].started || outcomes_[exec].over(); });
}

bool TestStream::waitHello() {
  return readUntil([&]() { return hello_; });
}

bool TestStream::waitClosed() {
  readUntil([&]() { return eof_; });
  return eof_;
}

// ---------------------------------------------------------------------------

TestAgent::TestAgent(AgentOptions options) {
  char pattern[] = "/tmp/cordon-test-agent-XXXXXX";
  KJ_REQUIRE(mkdtemp(pattern) != nullptr);
  workDir_ = pattern;
  KJ_SYSCALL(chmod(pattern, 0777));

  auto pair = ipc::socketPair(SOCK_SEQPACKET);
  control_ = kj::mv(pair.a);
  // A copy: the build directory need not be open to the agent's uid.
  std::string path = workDir_ + "/vm-agent";
  std::filesystem::copy_file(agentPath(), path);
  KJ_SYSCALL(chmod(path.c_str(), options.executeOnly ? 0111 : 0755));
  int ready[2], go[2];
  KJ_SYSCALL(pipe2(ready, O_CLOEXEC));
  KJ_SYSCALL(pipe2(go, O_CLOEXEC));
  kj::AutoCloseFd readyOut(ready[0]), readyIn(ready[1]), goOut(go[0]), goIn(go[1]);
  // Like fork, into new namespaces.
  pid_ = static_cast<pid_t>(
      syscall(SYS_clone, options.namespaces | SIGCHLD, nullptr, nullptr, nullptr, nullptr));
  KJ_REQUIRE(pid_ >= 0);
  if (pid_ == 0) {
    dup2(pair.b, STDIN_FILENO);
    setsid();
    if (options.prepare) options.prepare();
    readyIn = nullptr;
    goIn = nullptr;
    char byte;
    while (read(goOut, &byte, 1) < 0 && errno == EINTR) {
    }
    if (options.beforeExec) options.beforeExec();
    execl(path.c_str(), path.c_str(), static_cast<char*>(nullptr));
    _exit(99);
  }
  pair.b = nullptr;
  readyIn = nullptr;
  char byte;
  while (read(readyOut, &byte, 1) < 0 && errno == EINTR) {
  }
  if (options.afterFork) options.afterFork(pid_);
  goIn = nullptr;
  if (!options.sendConfig) return;

  capnp::MallocMessageBuilder message;
  auto config = message.initRoot<guest::AgentConfig>();
  config.setJoin(guest::JoinMode::SUBREAPER);
  config.setWorkDir(workDir_);
  config.initScratch(1).set(0, workDir_);
  config.setMaxExecs(16);
  config.setAgentUid(65000);
  config.setDefaultUid(1000);
  config.setDefaultGid(1000);
  if (options.configure) options.configure(config);
  auto words = capnp::messageToFlatArray(message);
  auto bytes = words.asBytes();
  std::vector<int> fds;
  if (options.profile >= 0) fds.push_back(options.profile);
  control(ipc::ControlKind::kConfig, 0, fds,
          {reinterpret_cast<const char*>(bytes.begin()), bytes.size()});
}

TestAgent::~TestAgent() noexcept(false) {
  control_ = nullptr;
  if (!waitExit(5000)) {
    ADD_FAILURE() << "the agent did not end with its control socket";
    ::kill(pid_, SIGKILL);
    waitExit();
  }
  if (status_ && WIFSIGNALED(*status_) && WTERMSIG(*status_) != SIGKILL) {
    ADD_FAILURE() << "the agent crashed: signal " << WTERMSIG(*status_);
  }
  std::error_code ignored;
  std::filesystem::remove_all(workDir_, ignored);
}

std::optional<int> TestAgent::waitExit(int patienceMs) {
  if (status_) return status_;
  eventually(
      [&]() {
        int status = 0;
        if (waitpid(pid_, &status, WNOHANG) != pid_) return false;
        status_ = status;
        return true;
      },
      patienceMs);
  return status_;
}

void TestAgent::controlRaw(const std::string& datagram) {
  ::send(control_, datagram.data(), datagram.size(), MSG_NOSIGNAL);
}

void TestAgent::control(ipc::ControlKind kind, uint32_t exec, const std::vector<int>& fds,
                        const std::string& payload) {
  ipc::ControlHeader header = {kind, exec};
  std::string datagram(reinterpret_cast<const char*>(&header), sizeof(header));
  datagram += payload;
  ipc::sendWithFds(control_, {reinterpret_cast<const kj::byte*>(datagram.data()), datagram.size()},
                   {fds.data(), fds.size()});
}

std::unique_ptr<TestStream> TestAgent::connect() {
  auto pair = ipc::socketPair(SOCK_STREAM);
  control(ipc::ControlKind::kStream, 0, {pair.b.get()});
  return std::make_unique<TestStream>(kj::mv(pair.a));
}

void TestAgent::announce(uint32_t exec, const std::vector<int>& fds) {
  control(ipc::ControlKind::kExec, exec, fds);
}

Outcome TestAgent::run(const Request& request) {
  auto stream = connect();
  uint32_t exec = nextExec();
  announce(exec);
  stream->start(exec, request);
  EXPECT_TRUE(stream->waitOver(exec));
  EXPECT_FALSE(stream->malformed());
  control(ipc::ControlKind::kForget, exec, {});
  return (*stream)[exec];
}

}  // namespace cordon::agent::testing
