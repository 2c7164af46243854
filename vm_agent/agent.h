// The agent: what it owns, and how a turn of its loop goes.
//
// Supervisor and host are trusted here; programs are not, and never get to talk
// to it: they share nothing with it but their own pipes.
#pragma once
#include <sys/resource.h>

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "vm_agent/config.h"
#include "vm_agent/control.h"
#include "vm_agent/exec.h"
#include "vm_agent/loop.h"
#include "vm_agent/processes.h"
#include "vm_agent/stream.h"
#include "vm_agent/subreaper.h"

namespace cordon::agent {

class Agent final : public ControlHandler, public StreamOwner {
 public:
  // `signals`: a signalfd for SIGCHLD and SIGTERM. originalFiles: RLIMIT_NOFILE
  // as it was at start.
  Agent(kj::AutoCloseFd control, kj::AutoCloseFd signals, rlimit originalFiles);

  [[noreturn]] void run();
  // Kills every process of every exec and exits.
  [[noreturn]] void end(int code);

 private:
  struct LeafEntry {
    std::shared_ptr<Leaf> leaf;
    bool used = false;
  };
  struct LeftOver {
    uint32_t exec;
    std::unique_ptr<Processes> processes;
    bool killing = false;
  };

  void onConfig(kj::ArrayPtr<const kj::byte> payload,
                const std::vector<kj::AutoCloseFd>& filters) override;
  void onStream(kj::AutoCloseFd fd) override;
  void onLeaf(uint32_t exec, std::vector<kj::AutoCloseFd> fds, bool complete) override;
  void onForget(uint32_t exec) override;
  void onSupervisorGone(const char* why) override;
  void onMessage(Stream& stream, guest::HostMessage::Reader message, size_t bytes) override;
  void onDrained(Stream& stream) override;

  void startExec(Stream& stream, guest::Start::Reader start);
  std::unique_ptr<Processes> makeProcesses(const LeafEntry& entry, Exec& exec);
  void killExec(Stream& stream, uint32_t number);
  // The exec of that number, if it is this stream's and not done.
  Exec* find(Stream& stream, uint32_t number);

  void onSignals();
  void reap();
  void runTimers();
  void runExecTimers(uint64_t now, uint64_t killUntil);
  void sweep();
  int timeoutMs() const;

  Loop loop_;
  FramePool pool_;
  SendBudget budget_;
  rlimit originalFiles_;
  std::optional<Config> config_;
  std::map<uint32_t, LeafEntry> leaves_;
  Subreapers subreapers_;
  std::vector<LeftOver> leftOvers_;
  // Streams outlive the execs that point to them.
  std::vector<std::unique_ptr<Stream>> streams_;
  std::vector<std::unique_ptr<Exec>> execs_;
  WatchedFd signals_;
  Control control_;
  bool reapAgain_ = false;
  size_t firstTimer_ = 0;  // whose exec's turn it is to go first
  uint64_t nextLeftOverKill_ = 0;
  uint64_t trimAt_ = UINT64_MAX;  // when to give memory back
};

}  // namespace cordon::agent
