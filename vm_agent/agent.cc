#include "vm_agent/agent.h"

#include <kj/debug.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <ctime>

#include "vm_agent/tracers.h"

namespace cordon::agent {

namespace {

// More than there may be execs: whose exec has just ended is known to the broker
// before its stream has ended here.
constexpr size_t kMaxStreams = 512;
constexpr size_t kMaxLeaves = 256;
constexpr size_t kMaxLeftOvers = 64;
// Execs alive at once that get a large output pipe: the pages of all pipes of
// one user are limited (16,384 by default), and past that new ones are tiny.
constexpr size_t kLargePipeExecs = 16;
// Programs can make zombies faster than they are buried.
constexpr int kReapsPerTurn = 256;
// How long all killing of one turn together may keep the others waiting.
constexpr uint64_t kKillBudgetUs = 20 * 1000;
constexpr uint64_t kLeftOverRetryUs = 20 * 1000;
constexpr uint64_t kTrimAfterUs = 200 * 1000;
constexpr uint64_t kEndGraceUs = 3 * 1000 * 1000;

void loadFilter(std::vector<sock_filter> filter) {
  const sock_fprog load = {static_cast<unsigned short>(filter.size()), filter.data()};
  KJ_SYSCALL(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
  KJ_SYSCALL(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &load), "our own filter");
}

}  // namespace

Agent::Agent(kj::AutoCloseFd control, kj::AutoCloseFd signals, rlimit originalFiles)
    : originalFiles_(originalFiles),
      signals_(loop_, kj::mv(signals), [this](uint32_t) { onSignals(); }),
      control_(loop_, kj::mv(control), *this) {
  signals_.watch(EPOLLIN);
}

void Agent::run() {
  for (;;) {
    loop_.dispatch(reapAgain_ ? 0 : timeoutMs());
    if (reapAgain_) reap();
    runTimers();
    sweep();
  }
}

void Agent::end(int code) {
  // As init of the sandbox: everything else in it, and the kernel makes sure of
  // it when we are gone.
  if (getpid() == 1) {
    ::kill(-1, SIGKILL);
    _exit(code);
  }
  for (auto& exec : execs_) exec->streamGone();
  uint64_t until = monotonicUs() + kEndGraceUs;
  for (;;) {
    reap();
    bool gone = true;
    uint64_t now = monotonicUs();
    runExecTimers(now, now + kKillBudgetUs);
    for (auto& exec : execs_) {
      exec->settle();
      if (!exec->done()) {
        gone = false;
        continue;
      }
      if (auto processes = exec->leftOver()) {
        leftOvers_.push_back({exec->number(), std::move(processes), true});
      }
    }
    for (auto& left : leftOvers_) gone = left.processes->killPass(0) && gone;
    if (gone || monotonicUs() >= until) _exit(code);
    timespec pause = {0, 1000 * 1000};
    nanosleep(&pause, nullptr);
  }
}

// ---------------------------------------------------------------------------
// Control

void Agent::onConfig(kj::ArrayPtr<const kj::byte> payload,
                     const std::vector<kj::AutoCloseFd>& filters) {
  // Before a byte of anybody else's is read.
  if (filters.size() > 1) loadFilter(readFilter(filters[1]));
  config_ = readConfig(payload, filters.empty() ? nullptr : &filters[0]);
  if (config_->join == guest::JoinMode::SUBREAPER) {
    // Only for what a killed subreaper leaves behind.
    KJ_SYSCALL(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0));
  }
}

void Agent::onStream(kj::AutoCloseFd fd) {
  // Refused by closing: the frontend sees EOF before any hello.
  if (streams_.size() >= kMaxStreams) return;
  streams_.push_back(std::make_unique<Stream>(loop_, pool_, budget_, kj::mv(fd), *this));
  capnp::MallocMessageBuilder message(64);
  message.initRoot<guest::GuestMessage>().initHello().setVersion(guest::PROTOCOL_VERSION);
  streams_.back()->send(message);
}

void Agent::onLeaf(uint32_t exec, std::vector<kj::AutoCloseFd> fds, bool complete) {
  auto leaf = std::make_shared<Leaf>();
  leaf->fds = std::move(fds);
  leaf->broken = !complete;
  if (exec == 0 || leaves_.size() >= kMaxLeaves) return;  // its start is refused
  leaves_[exec] = {std::move(leaf), false};
}

void Agent::onForget(uint32_t exec) {
  // An exec that still runs keeps its own hold on the leaf until it is done.
  leaves_.erase(exec);
}

void Agent::onSupervisorGone(const char* why) {
  if (why == nullptr) end(0);
  fprintf(stderr, "vm-agent: %s\n", why);
  end(1);
}

// ---------------------------------------------------------------------------
// Streams

void Agent::onMessage(Stream& stream, guest::HostMessage::Reader message, size_t bytes) {
  KJ_REQUIRE(message.isStart() || bytes <= guest::MAX_FRAME_BYTES, "frame too long");
  switch (message.which()) {
    case guest::HostMessage::START:
      return startExec(stream, message.getStart());
    case guest::HostMessage::STDIN: {
      auto input = message.getStdin();
      // An exec that has just ended is no error of the host's.
      if (Exec* exec = find(stream, input.getExec())) {
        KJ_REQUIRE(exec->takeStdin(input.getBytes()), "more stdin than credit");
      }
      return;
    }
    case guest::HostMessage::CLOSE_STDIN:
      if (Exec* exec = find(stream, message.getCloseStdin())) exec->endStdin();
      return;
    case guest::HostMessage::SIGNAL: {
      auto signal = message.getSignal();
      KJ_REQUIRE(signal.getSigno() >= 1 && signal.getSigno() <= 64, "no such signal");
      if (Exec* exec = find(stream, signal.getExec())) {
        exec->signal(static_cast<int>(signal.getSigno()));
      }
      return;
    }
    case guest::HostMessage::KILL:
      return killExec(stream, message.getKill());
    case guest::HostMessage::SHUTDOWN:
      end(0);
  }
  KJ_FAIL_REQUIRE("unknown message");
}

void Agent::startExec(Stream& stream, guest::Start::Reader start) {
  control_.drain();
  uint32_t number = start.getExec();
  auto entry = leaves_.find(number);
  if (entry == leaves_.end() || entry->second.used) {
    return sendFailed(stream, number, guest::FailStep::REQUEST, EINVAL);
  }
  if (execs_.size() >= config_->maxExecs) {
    return sendFailed(stream, number, guest::FailStep::REQUEST, EBUSY);
  }
  entry->second.used = true;
  auto checked = checkRequest(start, *config_);
  if (checked.error != 0) return sendFailed(stream, number, checked.step, checked.error);

  Exec::Context context = {loop_, pool_, *config_, originalFiles_, execs_.size() < kLargePipeExecs};
  // In the list first: should starting throw, the stream is closed, and with it
  // the exec ended.
  execs_.push_back(std::make_unique<Exec>(context, stream, std::move(checked.request)));
  Exec& exec = *execs_.back();
  exec.start(makeProcesses(entry->second, exec));
}

std::unique_ptr<Processes> Agent::makeProcesses(const LeafEntry& entry, Exec& exec) {
  if (config_->join == guest::JoinMode::SUBREAPER) {
    return makeSubreaperProcesses(loop_, subreapers_, exec.onMainEnd());
  }
  return makeLeafProcesses(loop_, config_->join, entry.leaf, exec.onMainEnd());
}

void Agent::killExec(Stream& stream, uint32_t number) {
  if (Exec* exec = find(stream, number)) return exec->kill(guest::KilledBy::HOST);
  for (auto& left : leftOvers_) {
    if (left.exec == number) {
      left.killing = true;
      nextLeftOverKill_ = 0;
    }
  }
}

Exec* Agent::find(Stream& stream, uint32_t number) {
  for (auto& exec : execs_) {
    if (exec->number() == number && exec->stream() == &stream && !exec->done()) return exec.get();
  }
  return nullptr;
}

void Agent::onDrained(Stream& stream) {
  for (auto& exec : execs_) {
    if (exec->stream() == &stream) exec->streamDrained();
  }
}

// ---------------------------------------------------------------------------
// A turn

void Agent::onSignals() {
  signalfd_siginfo info;
  while (read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
    if (info.ssi_signo == SIGTERM) end(0);
  }
  reap();
}

void Agent::reap() {
  reapAgain_ = false;
  for (int i = 0; i < kReapsPerTurn; ++i) {
    int status = 0;
    rusage usage = {};
    pid_t pid = wait4(-1, &status, WNOHANG, &usage);
    if (pid < 0 && errno == EINTR) continue;
    if (pid <= 0) return;
    if (WIFSTOPPED(status)) {
      detachStopped(pid, status);
      continue;
    }
    bool known = false;
    for (auto& exec : execs_) known = known || exec->reaped(pid, status, usage);
    for (auto& left : leftOvers_) known = known || left.processes->reaped(pid, status, usage);
  }
  reapAgain_ = true;
}

void Agent::runTimers() {
  uint64_t now = monotonicUs();
  uint64_t killUntil = now + kKillBudgetUs;
  runExecTimers(now, killUntil);
  if (now >= trimAt_) {
    trimAt_ = UINT64_MAX;
    pool_.clear();
    malloc_trim(0);
  }
  if (now < nextLeftOverKill_) return;
  for (auto& left : leftOvers_) {
    if (!left.killing && !left.processes->wantsKill()) continue;
    left.processes->killPass(killUntil);
    nextLeftOverKill_ = now + kLeftOverRetryUs;
  }
}

// The first may use up the time there is for killing, so each is first in turn.
void Agent::runExecTimers(uint64_t now, uint64_t killUntil) {
  ++firstTimer_;
  for (size_t i = 0; i < execs_.size(); ++i) {
    auto& exec = *execs_[(firstTimer_ + i) % execs_.size()];
    if (exec.nextTimer() <= now) exec.onTimer(now, killUntil);
  }
}

void Agent::sweep() {
  for (auto& stream : streams_) {
    if (stream->isOpen()) continue;
    for (auto& exec : execs_) {
      if (exec->stream() == stream.get()) exec->streamGone();
    }
  }
  std::erase_if(streams_, [](auto& stream) { return !stream->isOpen(); });

  for (auto& exec : execs_) exec->settle();
  for (auto& exec : execs_) {
    if (!exec->done()) continue;
    if (auto processes = exec->leftOver()) {
      leftOvers_.push_back({exec->number(), std::move(processes)});
    }
  }
  bool ended = std::erase_if(execs_, [](auto& exec) { return exec->done(); }) > 0;
  std::erase_if(leftOvers_, [](auto& left) { return !left.processes->mustStay(); });
  // Each costs a process and a descriptor: past a number the oldest go.
  for (size_t i = 0; i + kMaxLeftOvers < leftOvers_.size(); ++i) leftOvers_[i].killing = true;
  // An idle sandbox should cost little, and one exec after the other no trim.
  if (!execs_.empty()) {
    trimAt_ = UINT64_MAX;
  } else if (ended) {
    trimAt_ = monotonicUs() + kTrimAfterUs;
  }
}

int Agent::timeoutMs() const {
  uint64_t next = trimAt_;
  for (auto& exec : execs_) next = std::min(next, exec->nextTimer());
  for (auto& left : leftOvers_) {
    if (left.killing || left.processes->wantsKill()) next = std::min(next, nextLeftOverKill_);
  }
  if (next == UINT64_MAX) return -1;
  uint64_t now = monotonicUs();
  if (next <= now) return 0;
  // Rounded up, or the last millisecond would be spent spinning.
  return static_cast<int>(std::min<uint64_t>((next - now + 999) / 1000, 60 * 1000));
}

}  // namespace cordon::agent
