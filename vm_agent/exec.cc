#include "vm_agent/exec.h"

#include <fcntl.h>
#include <kj/debug.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>

#include "ipc/fdpass.h"
#include "vm_agent/scratch.h"

namespace cordon::agent {

namespace {

constexpr int kLargePipe = 1024 * 1024;
// How long `exited` waits for what was killed to be gone.
constexpr uint64_t kKillGraceUs = 1000 * 1000;
constexpr uint64_t kLongestDeadlineMs = uint64_t{1} << 40;
constexpr uint64_t kKillRetryUs = 5 * 1000;
constexpr uint64_t kKillSlowRetryUs = 200 * 1000;

uint64_t microseconds(const timeval& time) {
  return static_cast<uint64_t>(time.tv_sec) * 1000000 + static_cast<uint64_t>(time.tv_usec);
}

// Small messages are built on the stack.
struct SmallMessage {
  capnp::word scratch[256] = {};
  capnp::MallocMessageBuilder builder{kj::arrayPtr(scratch, 256)};
};

}  // namespace

void sendFailed(Stream& stream, uint32_t exec, guest::FailStep step, int error) {
  SmallMessage message;
  auto failed = message.builder.initRoot<guest::GuestMessage>().initFailed();
  failed.setExec(exec);
  failed.setErrno(static_cast<uint32_t>(error));
  failed.setStep(step);
  stream.send(message.builder);
}

Exec::Exec(Context context, Stream& stream, ExecRequest request)
    : context_(context),
      stream_(&stream),
      request_(std::move(request)),
      number_(request_.exec),
      stdin_(context.loop,
             [this](uint32_t bytes) {
               if (stream_ == nullptr) return;
               SmallMessage message;
               auto credit = message.builder.initRoot<guest::GuestMessage>().initStdinCredit();
               credit.setExec(number_);
               credit.setBytes(bytes);
               stream_->send(message.builder);
             }),
      stdout_(context.loop, context.pool, number_, guest::OutputStream::STDOUT,
              request_.outputBytes),
      stderr_(context.loop, context.pool, number_, guest::OutputStream::STDERR,
              request_.outputBytes) {}

// ---------------------------------------------------------------------------
// Starting

void Exec::start(std::unique_ptr<Processes> processes) {
  processes_ = std::move(processes);
  ChildEnds ends;
  if (int error = makePipes(ends)) {
    failed(guest::FailStep::STDIO, error);
    state_ = State::kDone;
    return;
  }
  startedAt_ = monotonicUs();
  clock_gettime(CLOCK_REALTIME_COARSE, &startedOnFiles_);
  auto failure = processes_->spawn(plan(ends));
  // argv and env live on in the child alone.
  request_.argv = {};
  request_.env = {};
  asking_ = {};
  if (failure.error != 0) {
    failed(failure.step, failure.error);
    state_ = State::kDone;
    return;
  }
  if (request_.deadlineMs > 0) {
    deadline_ = startedAt_ + std::min(request_.deadlineMs, kLongestDeadlineMs) * 1000;
  }
  failure_->watch(EPOLLIN);
}

int Exec::makePipes(ChildEnds& ends) {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) return errno;
  kj::AutoCloseFd readEnd(fds[0]);
  ends.failure = kj::AutoCloseFd(fds[1]);
  if (fcntl(readEnd, F_SETFL, O_RDONLY | O_NONBLOCK) != 0) return errno;
  failure_.emplace(context_.loop, kj::mv(readEnd), [this](uint32_t) { readFailurePipe(); });
  int capacity = context_.largePipes ? kLargePipe : 0;
  if (int error = stdout_.open(ends.stdout, capacity)) return error;
  if (int error = stderr_.open(ends.stderr, 0)) return error;
  if (request_.explain) {
    if (int error = openListenerSocket(ends)) return error;
  }
  if (request_.stdin) return stdin_.open(ends.stdin);
  return 0;
}

int Exec::openListenerSocket(ChildEnds& ends) {
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0) return errno;
  listener_ = kj::AutoCloseFd(fds[0]);
  ends.listener = kj::AutoCloseFd(fds[1]);
  asking_ = askingFilter(context_.config.filter);
  return 0;
}

ChildPlan Exec::plan(const ChildEnds& ends) {
  const Config& config = context_.config;
  ChildPlan plan;
  plan.argv = request_.argv.pointers();
  plan.envp = request_.env.pointers();
  plan.searchPath = request_.searchPath();
  plan.workDir = config.workDir.c_str();
  plan.cwd = request_.cwd.c_str();
  plan.stdinFd = request_.stdin ? ends.stdin.get() : -1;
  plan.stdoutFd = ends.stdout;
  plan.stderrFd = ends.stderr;
  plan.failureFd = ends.failure;

  if (request_.fileSizeBytes > 0) {
    plan.addLimit(RLIMIT_FSIZE, request_.fileSizeBytes, request_.fileSizeBytes);
  }
  if (request_.files > 0) {
    plan.addLimit(RLIMIT_NOFILE, request_.files, request_.files);
  } else {
    plan.addLimit(RLIMIT_NOFILE, context_.originalFiles.rlim_cur, context_.originalFiles.rlim_max);
  }
  if (request_.cpuTimeMs > 0) {
    // Soft raises SIGXCPU; hard, a second later, is for who ignores it.
    uint64_t seconds = request_.cpuTimeMs / 1000 + (request_.cpuTimeMs % 1000 != 0 ? 1 : 0);
    plan.addLimit(RLIMIT_CPU, seconds, seconds + 1);
  }
  if (config.dataBytes > 0) plan.addLimit(RLIMIT_DATA, config.dataBytes, config.dataBytes);
  if (config.processes > 0) plan.addLimit(RLIMIT_NPROC, config.processes, config.processes);

  plan.switchUser = config.switchUser;
  plan.uid = request_.user.uid;
  plan.gid = request_.user.gid;
  const auto& filter = request_.explain ? asking_ : config.filter;
  plan.filter.len = static_cast<unsigned short>(filter.size());
  plan.filter.filter = const_cast<sock_filter*>(filter.data());
  plan.listenerSocket = ends.listener;  // -1 where there is none
  return plan;
}

void Exec::readFailurePipe() {
  if (state_ != State::kStarting) return;
  ChildFailure failure = {};
  ssize_t got = read(failure_->get(), &failure, sizeof(failure));
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  failure_->close();
  if (got == sizeof(failure)) {
    failed(static_cast<guest::FailStep>(failure.step), failure.error);
    state_ = State::kFailed;  // the child exits by itself and is reaped
    return;
  }
  begin();
}

void Exec::begin() {
  state_ = State::kRunning;
  if (stream_ == nullptr) return;
  sendStarted();
  stdout_.start(*stream_);
  stderr_.start(*stream_);
}

void Exec::failed(guest::FailStep step, int error) {
  closePipes();
  if (stream_ != nullptr) sendFailed(*stream_, number_, step, error);
}

// The child execs only once it was sent, so here it is.
kj::AutoCloseFd Exec::takeListener() {
  auto socket = kj::mv(listener_);
  if (socket.get() < 0) return nullptr;
  kj::byte byte;
  auto received = ipc::receiveWithFds(socket, kj::arrayPtr(&byte, 1), 1);
  KJ_IF_MAYBE (datagram, received) {
    if (datagram->fds.size() == 1) return kj::mv(datagram->fds[0]);
  }
  return nullptr;  // too many open: the frontend says that it didn't come
}

void Exec::sendStarted() {
  SmallMessage message;
  message.builder.initRoot<guest::GuestMessage>().setStarted(number_);
  stream_->send(message.builder, takeListener());
}

void Exec::closePipes() {
  stdin_.abandon();
  stdout_.abandon();
  stderr_.abandon();
  if (failure_) failure_->close();
  listener_ = nullptr;
}

// ---------------------------------------------------------------------------
// Running

bool Exec::takeStdin(kj::ArrayPtr<const kj::byte> bytes) {
  return state_ == State::kEnded || state_ == State::kFailed || stdin_.take(bytes);
}

void Exec::endStdin() {
  stdin_.end();
}

void Exec::signal(int signal) {
  if (state_ == State::kStarting || state_ == State::kRunning) processes_->signalMain(signal);
}

void Exec::kill(guest::KilledBy by) {
  if (done() || killing_ || state_ == State::kFailed) return;
  // A kill that comes after main's end finds what was left; the exec itself
  // ended by itself.
  if (state_ != State::kEnded) killedBy_ = by;
  killing_ = true;
  killStarted_ = monotonicUs();
  nextKill_ = 0;
}

void Exec::pumpKill(uint64_t now, uint64_t until) {
  if (processes_->killPass(until)) {
    killing_ = false;
  } else {
    // One that hangs in the kernel must not keep the agent busy.
    bool slow = now - killStarted_ > 2 * kKillGraceUs;
    nextKill_ = now + (slow ? kKillSlowRetryUs : kKillRetryUs);
  }
  settle();
}

void Exec::streamGone() {
  stream_ = nullptr;
  stdin_.abandon();
  stdout_.abandon();
  stderr_.abandon();
  kill(guest::KilledBy::HOST);
  settle();
}

void Exec::streamDrained() {
  stdout_.resume();
  stderr_.resume();
}

// ---------------------------------------------------------------------------
// Ending

bool Exec::reaped(pid_t pid, int status, const rusage& usage) {
  if (processes_ == nullptr || !processes_->reaped(pid, status, usage)) return false;
  nextKill_ = 0;  // it may have been the last
  return true;
}

void Exec::mainEnded(const MainEnd& end) {
  endedAt_ = monotonicUs();
  // The child's own word, if there is one, lies in the pipe by now.
  if (state_ == State::kStarting) readFailurePipe();
  if (state_ == State::kStarting) begin();
  if (state_ == State::kFailed) {
    state_ = State::kDone;
    return;
  }
  end_ = end;
  state_ = State::kEnded;
  stdin_.abandon();
  stdout_.drain();
  stderr_.drain();
  settle();
}

void Exec::settle() {
  if (state_ != State::kEnded || !stdout_.finished() || !stderr_.finished()) return;
  bool waited = monotonicUs() >= killStarted_ + kKillGraceUs;
  if (stream_ != nullptr && (!killing_ || waited)) {
    sendExited();
    stream_ = nullptr;  // that was its last message
  }
  if (stream_ == nullptr && !killing_) state_ = State::kDone;
}

void Exec::sendExited() {
  SmallMessage message;
  auto exited = message.builder.initRoot<guest::GuestMessage>().initExited();
  exited.setExec(number_);
  bool signaled = WIFSIGNALED(end_.status);
  exited.setSignaled(signaled);
  exited.setCode(
      static_cast<uint32_t>(signaled ? WTERMSIG(end_.status) : WEXITSTATUS(end_.status)));
  exited.setUserUs(microseconds(end_.usage.ru_utime));
  exited.setSystemUs(microseconds(end_.usage.ru_stime));
  exited.setMaxRssBytes(static_cast<uint64_t>(end_.usage.ru_maxrss) * 1024);
  exited.setWallUs(endedAt_ - startedAt_);
  stdout_.report(exited.initStdout());
  stderr_.report(exited.initStderr());
  exited.setKilledBy(killedBy_);
  bool killed = killedBy_ != guest::KilledBy::NOBODY;
  exited.setLeftRunning(killed ? 0 : std::min(end_.leftRunning, 65535u));
  reportScratch(context_.config, exited);
  if (request_.fileSizeBytes > 0) {
    for (const auto& root : context_.config.scratch) {
      auto found = findFileOfSize(root, request_.fileSizeBytes, startedOnFiles_);
      if (found.empty()) continue;
      exited.setFileAtLimit(found.c_str());
      break;
    }
  }
  stream_->send(message.builder);
}

uint64_t Exec::nextTimer() const {
  uint64_t next = UINT64_MAX;
  if (done()) return next;
  if (killing_) next = std::min(next, nextKill_);
  bool alive = state_ == State::kStarting || state_ == State::kRunning;
  if (alive && !killing_) next = std::min(next, deadline_);
  if (processes_ != nullptr) next = std::min(next, processes_->nextCheck());
  return next;
}

void Exec::onTimer(uint64_t now, uint64_t killUntil) {
  bool alive = state_ == State::kStarting || state_ == State::kRunning;
  if (alive && now >= deadline_ && !killing_) kill(guest::KilledBy::DEADLINE);
  if (now >= processes_->nextCheck()) processes_->check(now);
  if (killing_ && now >= nextKill_) pumpKill(now, killUntil);
}

std::unique_ptr<Processes> Exec::leftOver() {
  if (processes_ == nullptr || !processes_->mustStay()) return nullptr;
  return std::move(processes_);
}

}  // namespace cordon::agent
