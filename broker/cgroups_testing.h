// For tests on the machine's own hierarchies: a base of the test's own, and its
// removal whatever happens.
#pragma once
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "broker/cgroups_tree.h"

namespace cordon::broker::testing {

// False after 20 s.
inline bool eventually(const std::function<bool()>& condition) {
  auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    usleep(2000);
  }
  return true;
}

// For children: there until killed, but never for longer than a test lasts.
[[noreturn]] inline void park() {
  alarm(60);
  for (;;) pause();
}

// Forks as fast as it can; gives up by itself when nobody ends it.
[[noreturn]] inline void forkBomb() {
  auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (std::chrono::steady_clock::now() < deadline) {
    // Parent and child go on; a refused fork is tried again.
    if (fork() == 0) setsid();
  }
  _exit(0);
}

// A process of the test, killed and reaped at the end.
class Process {
 public:
  explicit Process(const std::function<void()>& body) : pid_(fork()) {
    if (pid_ == 0) {
      body();
      _exit(0);
    }
  }
  explicit Process(pid_t pid) : pid_(pid) {}
  Process(Process&& other) noexcept : pid_(other.pid_) { other.pid_ = -1; }
  Process(const Process&) = delete;
  ~Process() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    wait();
  }
  pid_t pid() const { return pid_; }
  int wait() {
    int status = -1;
    while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
    return status;
  }
  bool alive() const {
    siginfo_t info{};
    return waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid == 0;
  }

 private:
  pid_t pid_;
};

inline uint64_t value(const Counters& counters, rpc::CounterKind kind,
                      rpc::Scope scope = rpc::Scope::EXEC) {
  for (auto& counter : counters) {
    if (counter.kind == kind && counter.scope == scope) return counter.value;
  }
  ADD_FAILURE() << "no counter of kind " << static_cast<int>(kind);
  return 0;
}

// Every directory below every hierarchy's `base`, with the hierarchy's name.
inline std::vector<std::string> directoriesBelow(const std::string& base) {
  std::vector<std::string> all;
  for (auto& h : openHierarchies(readHierarchies())) {
    KJ_IF_MAYBE (dir, openBelow(h.mount, base)) {
      all.push_back(dir->label());
      for (auto& child : dir->children()) all.push_back(dir->label() + "/" + child);
    }
  }
  return all;
}

inline ResolvedLimits someLimits() {
  ResolvedLimits limits;
  limits.memoryBytes = 32 << 20;
  limits.pids = 12;
  limits.cpuMillis = 500;
  limits.cpuTimeMs = 60'000;
  limits.wallMs = 60'000;
  limits.fileSizeBytes = 1 << 20;
  limits.files = 64;
  limits.diskBytes = limits.tmpBytes = limits.shmBytes = 1 << 20;
  limits.outputBytes = 1 << 20;
  return limits;
}

}  // namespace cordon::broker::testing
