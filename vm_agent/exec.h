// One exec: from an accepted request to its last message.
//
//   starting ──(failure pipe: a failure)──▶ failed ──(reaped)──▶ done
//      │
//      └─(failure pipe: EOF)──▶ running ──(main ends)──▶ ended ──▶ done
//
// `ended` lasts while the pipes are drained and, when it was killed, until all
// of its processes are gone or a second has passed.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>

#include "vm_agent/config.h"
#include "vm_agent/output_pipe.h"
#include "vm_agent/processes.h"
#include "vm_agent/request.h"
#include "vm_agent/stdin_pipe.h"
#include "vm_agent/stream.h"

namespace cordon::agent {

void sendFailed(Stream& stream, uint32_t exec, guest::FailStep step, int error);

class Exec {
 public:
  struct Context {
    Loop& loop;
    FramePool& pool;
    const Config& config;
    rlimit originalFiles;  // RLIMIT_NOFILE before the agent raised its own
    bool largePipes;
  };

  Exec(Context context, Stream& stream, ExecRequest request);

  // For makeProcesses: to be given what they should report to.
  Processes::OnMainEnd onMainEnd() {
    return [this](const MainEnd& end) { mainEnded(end); };
  }
  // Starts it. Failures are told to the host by the exec itself.
  void start(std::unique_ptr<Processes> processes);

  uint32_t number() const { return number_; }
  Stream* stream() const { return stream_; }

  // False: a protocol error.
  bool takeStdin(kj::ArrayPtr<const kj::byte> bytes);
  void endStdin();
  void signal(int signal);
  // Only marks it: onTimer(), which is due at once then, does the killing.
  void kill(guest::KilledBy by);
  // The stream is closed: everything is killed, as by kill(), and nobody is told.
  void streamGone();
  void streamDrained();

  bool reaped(pid_t pid, int status, const rusage& usage);
  // When onTimer wants to be called (monotonic us); UINT64_MAX: not at all.
  uint64_t nextTimer() const;
  // Kills until `killUntil`, or for one round if that is over.
  void onTimer(uint64_t now, uint64_t killUntil);

  // Once per turn of the loop: sends `exited` when all it waits for is there.
  void settle();
  bool done() const { return state_ == State::kDone; }
  // What must outlive the exec, once it is done; may be null.
  std::unique_ptr<Processes> leftOver();

 private:
  enum class State : uint8_t { kStarting, kRunning, kFailed, kEnded, kDone };

  struct ChildEnds {
    kj::AutoCloseFd stdin, stdout, stderr, failure, listener;
  };
  int makePipes(ChildEnds& ends);
  ChildPlan plan(const ChildEnds& ends);
  void failed(guest::FailStep step, int error);
  void readFailurePipe();
  void mainEnded(const MainEnd& end);
  void begin();
  void pumpKill(uint64_t now, uint64_t until);
  int openListenerSocket(ChildEnds& ends);
  kj::AutoCloseFd takeListener();
  void sendStarted();
  void sendExited();
  void closePipes();

  Context context_;
  Stream* stream_;
  ExecRequest request_;
  uint32_t number_;
  std::unique_ptr<Processes> processes_;
  StdinPipe stdin_;
  OutputPipe stdout_, stderr_;
  std::optional<WatchedFd> failure_;
  kj::AutoCloseFd listener_;         // explain: where the listener comes
  std::vector<sock_filter> asking_;  // explain: the child's filter

  State state_ = State::kStarting;
  guest::KilledBy killedBy_ = guest::KilledBy::NOBODY;
  bool killing_ = false;  // until a pass found nothing left
  uint64_t killStarted_ = 0;
  uint64_t nextKill_ = 0;
  uint64_t startedAt_ = 0;
  timespec startedOnFiles_ = {};  // as the kernel stamps changed files
  uint64_t endedAt_ = 0;
  uint64_t deadline_ = UINT64_MAX;
  MainEnd end_;
};

}  // namespace cordon::agent
