// The processes of one exec: how they are started, counted and ended.
#pragma once
#include <kj/io.h>
#include <sys/resource.h>
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "vm_agent/child.h"
#include "vm_agent/config.h"
#include "vm_agent/loop.h"

namespace cordon::agent {

// How main ended.
struct MainEnd {
  int status = 0;  // as of wait4
  rusage usage = {};
  uint32_t leftRunning = 0;
};

class Processes {
 public:
  using OnMainEnd = std::function<void(const MainEnd&)>;

  struct SpawnFailure {
    guest::FailStep step = guest::FailStep::FORK;
    int error = 0;
  };

  virtual ~Processes() noexcept(false) = default;
  // Forks; the child becomes the program by itself. error 0: it is on its way.
  virtual SpawnFailure spawn(const ChildPlan& plan) = 0;
  virtual void signalMain(int signal) = 0;
  // SIGKILL to everything, round after round; true when nothing was left. Ends
  // after the first round that is over past `until` (monotonic us): call again
  // until true. Also false when nobody can say what is left.
  virtual bool killPass(uint64_t until) = 0;
  // The reaper waited for this pid; true when it was one of these processes'
  // own (main, or the exec's subreaper).
  virtual bool reaped(pid_t pid, int status, const rusage& usage) = 0;
  // True when it must be kept after main's end, as long as it says so.
  virtual bool mustStay() const = 0;
  // When check() wants to be called (monotonic us); UINT64_MAX: not at all.
  virtual uint64_t nextCheck() const { return UINT64_MAX; }
  // Looks after an end of main that nobody told.
  virtual void check(uint64_t) {}
  // True when it found by itself that something is left to be killed.
  virtual bool wantsKill() const { return false; }
};

// The leaf cgroup of an exec, as the broker handed it over.
struct Leaf {
  // v1: [0] cgroup.procs (read), [1..] tasks (write). v2: [0] the leaf's mount.
  std::vector<kj::AutoCloseFd> fds;
  bool broken = false;  // descriptors were lost on the way here
};

// cgroup v1 and v2.
std::unique_ptr<Processes> makeLeafProcesses(Loop& loop, guest::JoinMode join,
                                             std::shared_ptr<Leaf> leaf,
                                             Processes::OnMainEnd onMainEnd);

}  // namespace cordon::agent
