#include "broker/main/broker_testing.h"

#include <dirent.h>
#include <fcntl.h>
#include <kj/debug.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace cordon::broker::testing {

namespace fs = std::filesystem;

namespace {
double now() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) / 1e9;
}

std::string program(const char* variable) {
  const char* path = getenv(variable);
  KJ_REQUIRE(path != nullptr, "the test needs this variable", variable);
  return path;
}

sockaddr_un address(const std::string& path) {
  sockaddr_un result{};
  result.sun_family = AF_UNIX;
  KJ_REQUIRE(path.size() < sizeof(result.sun_path), path);
  memcpy(result.sun_path, path.c_str(), path.size() + 1);
  return result;
}

int boundSocket(const std::string& path, int type) {
  int fd;
  KJ_SYSCALL(fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  auto where = address(path);
  KJ_SYSCALL(bind(fd, reinterpret_cast<sockaddr*>(&where), sizeof(where)), path);
  return fd;
}

std::string readFile(const std::string& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

int milliseconds(double seconds) {
  return std::max(0, static_cast<int>(seconds * 1000));
}
}  // namespace

bool eventually(const std::function<bool()>& condition, double seconds) {
  double end = now() + seconds;
  while (!condition()) {
    if (now() > end) return false;
    timespec pause{0, 5'000'000};
    nanosleep(&pause, nullptr);
  }
  return true;
}

namespace {
struct Stat {
  char state = 0;
  pid_t parent = 0;
};

// All zero when there is no such process.
Stat statOf(const std::string& pid) {
  Stat result;
  std::string text = readFile("/proc/" + pid + "/stat");
  // The name in parentheses may hold anything.
  auto end = text.rfind(')');
  if (end == std::string::npos ||
      sscanf(text.c_str() + end, ") %c %d", &result.state, &result.parent) != 2) {
    return {};
  }
  return result;
}
}  // namespace

std::vector<pid_t> childrenOf(pid_t parent) {
  std::vector<pid_t> result;
  std::error_code ignored;
  for (auto& process : fs::directory_iterator("/proc", ignored)) {
    std::string pid = process.path().filename().string();
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    auto stat = statOf(pid);
    if (stat.parent == parent && stat.state != 'Z') result.push_back(std::stoi(pid));
  }
  return result;
}

TempDir::TempDir() {
  // As in a service, where records are on tmpfs.
  path_ = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
  path_ += "/cordon-broker-test-XXXXXX";
  KJ_REQUIRE(mkdtemp(path_.data()) != nullptr, strerror(errno));
}

TempDir::~TempDir() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

BrokerProcess::BrokerProcess(std::vector<std::string> options)
    : socket_(dir_.path() + "/broker.sock"), options_(std::move(options)) {
  // Others may look for the socket: the tests of refused peers.
  KJ_SYSCALL(chmod(dir_.path().c_str(), 0755));
  listener_ = boundSocket(socket_, SOCK_STREAM);
  KJ_SYSCALL(chmod(socket_.c_str(), 0666));
  KJ_SYSCALL(listen(listener_, 64));
  notify_ = boundSocket(dir_.path() + "/notify", SOCK_DGRAM);
}

BrokerProcess::~BrokerProcess() {
  try {
    // A test that failed half way: the next broker takes away what is left.
    if (!running() && !instance().empty() && !remains().empty()) start();
  } catch (const kj::Exception& exception) {
    fprintf(stderr, "%s\n", exception.getDescription().cStr());
  }
  if (running()) {
    signal(SIGTERM);
    if (wait(30) < 0) {
      signal(SIGKILL);
      wait(10);
    }
  }
  ::close(listener_);
  ::close(notify_);
}

bool BrokerProcess::start() {
  launch();
  return awaitReady();
}

void BrokerProcess::launch() {
  std::vector<std::string> args = {program("CORDON_BROKER"),
                                   "--state",
                                   state(),
                                   "--agents-uid",
                                   std::to_string(geteuid()),
                                   "--vm-agent",
                                   program("CORDON_VM_AGENT")};
  args.insert(args.end(), options_.begin(), options_.end());
  std::vector<char*> argv;
  for (auto& arg : args) argv.push_back(arg.data());
  argv.push_back(nullptr);
  std::string notify = dir_.path() + "/notify";
  std::string logPath = dir_.path() + "/log";

  status_ = -1;
  KJ_SYSCALL(pid_ = fork());
  if (pid_ != 0) return;
  // A test that dies takes its broker with it; the broker's own end is what
  // ends its sandboxes.
  int log = open(logPath.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
  if (log < 0 || dup2(log, 2) < 0 || dup2(log, 1) < 0 || dup2(listener_, 3) < 0) _exit(120);
  fcntl(3, F_SETFD, 0);
  setenv("LISTEN_PID", std::to_string(getpid()).c_str(), 1);
  setenv("LISTEN_FDS", "1", 1);
  setenv("LISTEN_FDNAMES", "broker", 1);
  setenv("NOTIFY_SOCKET", notify.c_str(), 1);
  execv(argv[0], argv.data());
  _exit(121);
}

bool BrokerProcess::awaitReady(double seconds) {
  double end = now() + seconds;
  while (now() < end) {
    pollfd p{notify_, POLLIN, 0};
    if (poll(&p, 1, 20) > 0) {
      char text[256];
      ssize_t n = recv(notify_, text, sizeof(text), 0);
      if (n > 0 && std::string(text, static_cast<size_t>(n)).find("READY=1") == 0) return true;
    }
    if (!running()) return false;
  }
  return false;
}

void BrokerProcess::signal(int signo) {
  if (pid_ > 0 && status_ < 0) ::kill(pid_, signo);
}

bool BrokerProcess::running() {
  return pid_ > 0 && wait(0) < 0;
}

int BrokerProcess::wait(double seconds) {
  if (status_ >= 0 || pid_ < 0) return status_;
  eventually(
      [this] {
        int status;
        if (waitpid(pid_, &status, WNOHANG) != pid_) return false;
        status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        return true;
      },
      seconds);
  return status_;
}

std::string BrokerProcess::log() const {
  return readFile(dir_.path() + "/log");
}

std::string BrokerProcess::instance() const {
  std::string text = log();
  auto at = text.find("instance ");
  return at == std::string::npos ? "" : text.substr(at + 9, 12);
}

std::vector<std::string> BrokerProcess::remains() const {
  std::vector<std::string> result;
  std::error_code ignored;
  std::string id = instance();
  KJ_REQUIRE(!id.empty(), "the broker never said its instance");
  for (auto& hierarchy : fs::directory_iterator("/sys/fs/cgroup", ignored)) {
    if (hierarchy.is_symlink()) continue;
    std::string top = hierarchy.path().string() + "/cordon/" + id;
    if (fs::exists(top, ignored)) {
      for (auto& d : fs::recursive_directory_iterator(top, ignored)) {
        if (d.is_directory()) result.push_back("cgroup " + d.path().string());
      }
      if (pid_ <= 0 || status_ >= 0) result.push_back("cgroup " + top);
    }
  }
  if (pid_ <= 0 || status_ >= 0) {
    if (fs::exists("/run/cordon/" + id, ignored)) result.push_back("directory /run/cordon/" + id);
  }
  for (auto& record : fs::directory_iterator(state() + "/records", ignored)) {
    result.push_back("record " + record.path().string());
  }
  for (auto& sandbox : fs::directory_iterator(state() + "/run/sandboxes", ignored)) {
    result.push_back("directory " + sandbox.path().string());
  }
  for (auto& claim : fs::directory_iterator("/run/cordon/ids", ignored)) {
    if (!claim.is_symlink()) continue;
    std::string target = fs::read_symlink(claim.path(), ignored).string();
    if (target.find(dir_.path()) == 0) result.push_back("id-range " + claim.path().string());
  }
  for (auto& process : fs::directory_iterator("/proc", ignored)) {
    std::string pid = process.path().filename().string();
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    if (pid == std::to_string(pid_) && status_ < 0) continue;
    // A zombie that is not the broker's waits for the host's init, as long as
    // that takes.
    auto stat = statOf(pid);
    if (stat.state == 'Z' && (stat.parent != pid_ || status_ >= 0)) continue;
    std::string facts = readFile(process.path().string() + "/cgroup") +
                        readFile(process.path().string() + "/cmdline") +
                        fs::read_symlink(process.path() / "cwd", ignored).string();
    if (facts.find("/cordon/" + id) != std::string::npos ||
        facts.find(dir_.path()) != std::string::npos) {
      result.push_back("process " + pid + " " + readFile(process.path().string() + "/comm"));
    }
  }
  std::sort(result.begin(), result.end());
  return result;
}

namespace {
kj::Own<kj::AsyncCapabilityStream> connectTo(kj::AsyncIoContext& io, const std::string& path) {
  int fd;
  KJ_SYSCALL(fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  auto where = address(path);
  KJ_SYSCALL(connect(fd, reinterpret_cast<sockaddr*>(&where), sizeof(where)), path);
  return io.lowLevelProvider->wrapUnixSocketFd(
      fd,
      kj::LowLevelAsyncIoProvider::TAKE_OWNERSHIP | kj::LowLevelAsyncIoProvider::ALREADY_CLOEXEC);
}
}  // namespace

Frontend::Frontend(kj::AsyncIoContext& io, const BrokerProcess& broker)
    : stream_(connectTo(io, broker.socketPath())),
      client_(*stream_, 8),
      port_(client_.bootstrap().castAs<rpc::AgentPort>()) {}

GuestStream::GuestStream(int fd) : reader_(guest::MAX_FRAME_BYTES) {
  KJ_SYSCALL(fd_ = fcntl(fd, F_DUPFD_CLOEXEC, 3));
}

GuestStream::~GuestStream() {
  close();
}

void GuestStream::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

bool GuestStream::pump(double seconds) {
  pollfd p{fd_, POLLIN, 0};
  if (poll(&p, 1, milliseconds(seconds)) <= 0) return false;
  auto space = reader_.space();
  ssize_t n = recv(fd_, space.begin(), space.size(), MSG_DONTWAIT);
  if (n <= 0) return false;
  reader_.commit(static_cast<size_t>(n));
  for (;;) {
    KJ_IF_MAYBE (words, reader_.next()) {
      capnp::FlatArrayMessageReader message(*words, ipc::readerOptions(guest::MAX_FRAME_BYTES));
      take(message.getRoot<guest::GuestMessage>());
    } else {
      return reader_.error() == ipc::FrameError::kNone;
    }
  }
}

void GuestStream::take(guest::GuestMessage::Reader message) {
  switch (message.which()) {
    case guest::GuestMessage::HELLO:
      greeted_ = true;
      break;
    case guest::GuestMessage::OUTPUT: {
      auto output = message.getOutput();
      auto& exec = execs_[output.getExec()];
      auto& text = output.getStream() == guest::OutputStream::STDOUT ? exec.out : exec.err;
      text.append(output.getBytes().asChars().begin(), output.getBytes().size());
      break;
    }
    case guest::GuestMessage::EXITED: {
      auto& exec = execs_[message.getExited().getExec()];
      exec.ended = true;
      exec.signaled = message.getExited().getSignaled();
      exec.code = message.getExited().getCode();
      break;
    }
    case guest::GuestMessage::FAILED: {
      auto& exec = execs_[message.getFailed().getExec()];
      exec.ended = exec.failed = true;
      exec.code = message.getFailed().getErrno();
      break;
    }
    default:
      break;
  }
}

bool GuestStream::hello(double seconds) {
  double end = now() + seconds;
  while (!greeted_ && now() < end && pump(end - now())) {
  }
  return greeted_;
}

void GuestStream::start(uint32_t exec, const std::vector<std::string>& argv,
                        const std::function<void(guest::Start::Builder)>& change) {
  capnp::MallocMessageBuilder message;
  auto start = message.initRoot<guest::HostMessage>().initStart();
  start.setExec(exec);
  auto args = start.initArgv(static_cast<uint>(argv.size()));
  for (uint i = 0; i < argv.size(); ++i) {
    args.set(i, kj::arrayPtr(reinterpret_cast<const kj::byte*>(argv[i].data()), argv[i].size()));
  }
  auto env = start.initEnv(1);
  auto path = "PATH=/usr/local/bin:/usr/bin:/bin"_kj;
  env.set(0, path.asBytes());
  if (change) change(start);
  auto frame = ipc::frameMessage(message);
  auto bytes = frame.asBytes();
  while (bytes.size() > 0) {
    pollfd p{fd_, POLLOUT, 0};
    KJ_REQUIRE(poll(&p, 1, 10'000) > 0, "the agent does not read");
    ssize_t n = send(fd_, bytes.begin(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EAGAIN) continue;
    if (n < 0) return;  // finish() will say so
    bytes = bytes.slice(static_cast<size_t>(n), bytes.size());
  }
}

Outcome GuestStream::finish(uint32_t exec, double seconds) {
  double end = now() + seconds;
  while (!execs_[exec].ended && now() < end && pump(end - now())) {
  }
  return execs_[exec];
}

bool GuestStream::sees(uint32_t exec, const std::string& text, double seconds) {
  double end = now() + seconds;
  auto there = [&] { return execs_[exec].out.find(text) != std::string::npos; };
  while (!there() && !execs_[exec].ended && now() < end && pump(end - now())) {
  }
  return there();
}

}  // namespace cordon::broker::testing
