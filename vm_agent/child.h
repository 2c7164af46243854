// What a forked child does to become the program.
#pragma once
#include <linux/filter.h>
#include <sys/resource.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace cordon::agent {

// Everything that the child needs, prepared before the fork: after it nothing
// is allocated. Pointers and descriptors are the parent's to keep and close.
struct ChildPlan {
  char* const* argv = nullptr;
  char* const* envp = nullptr;
  const char* searchPath = "";  // of argv[0] when it has no slash
  const char* workDir = "/";
  const char* cwd = "";  // "" = workDir; relative = from workDir

  int stdinFd = -1;  // -1: the agent's own fd 0, which is /dev/null
  int stdoutFd = -1;
  int stderrFd = -1;
  int failureFd = -1;  // CLOEXEC: a ChildFailure is written to it, or EOF

  // cgroup v1: `tasks` of each hierarchy.
  const int* taskFds = nullptr;
  size_t taskFdCount = 0;

  struct Limit {
    int resource;
    rlimit value;
  };
  static constexpr size_t kMaxLimits = 8;
  Limit limits[kMaxLimits];
  size_t limitCount = 0;
  void addLimit(int resource, uint64_t soft, uint64_t hard);

  bool switchUser = false;
  uid_t uid = 0;
  gid_t gid = 0;
  sock_fprog filter = {};  // len 0: none
  // Not -1: the filter asks a listener, which is to be sent there (listener.h).
  int listenerSocket = -1;
};

struct ChildFailure {
  uint32_t step;  // guest::FailStep
  int32_t error;
};

// Runs in the child, never returns. Async-signal-safe.
[[noreturn]] void becomeProgram(const ChildPlan& plan);

}  // namespace cordon::agent
