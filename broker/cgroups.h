// The cgroup tree of a sandbox (DESIGN section 6), on v1, hybrid and v2.
//
//   BASE/INSTANCE/NAME          BASE is cordon's own subtree ("/cordon")
//     agent                     vm-agent; small limits of its own
//     work                      the sandbox's limits
//       exec-N                  one per exec: its counters are the exec's own
//
// v1: the same path in every hierarchy that has a controller we use (memory,
// pids, cpu, cpuacct); the child of the agent joins by writing "0" to `tasks`
// fds. runc makes NAME/agent in all other hierarchies too; removal covers them.
// v2: an exec is born in its leaf; the leaf goes to the agent as a detached,
// read-only mount (a plain directory fd is a way out of the jail).
//
// Nothing here moves a process. No call blocks for a kernel grace period.
#pragma once
#include <errno.h>
#include <kj/async.h>
#include <kj/io.h>
#include <kj/timer.h>

#include <cstdint>
#include <string>
#include <vector>

#include "broker/limits.h"
#include "ipc/broker.capnp.h"

namespace cordon::broker {

enum class CgroupMode : uint8_t {
  kNone,  // no writable hierarchy with memory and pids: runtimes that need it say so
  kV1,    // v1 or hybrid: the controllers are on v1
  kV2,
};

struct CounterValue {
  rpc::CounterKind kind;
  rpc::Scope scope;
  uint64_t value = 0;
  std::string file;  // "memory.oom_control oom_kill"
};
using Counters = std::vector<CounterValue>;

struct LeftOver {
  std::string kind;  // "cgroup", "process"
  std::string name;
  int error = 0;
};

// A limit that was written but reads back otherwise, or could not be written.
struct LimitNotApplied {
  std::string file;
  int error = 0;  // 0: the read-back differs
};

// exec-N. Owns its fds; the directory stays until remove().
class ExecLeaf {
 public:
  virtual ~ExecLeaf() noexcept(false) = default;
  // What ControlKind::kExec carries: borrowed, valid while the leaf lives.
  virtual std::vector<int> agentFds() const = 0;
  // Scope `exec`. After kill() on v1 pidsRefused is the value from before it
  // (the kill itself makes forks fail).
  virtual Counters read() = 0;
  virtual uint64_t cpuUsageUs() = 0;
  virtual bool populated() = 0;
  // One pass of killing everything in it, fork-proof: v2 cgroup.kill; v1
  // pids.max = 0 and SIGKILL by pidfd of every listed process (membership
  // checked again after pidfd_open). True when nothing is left.
  virtual bool killPass() = 0;
  // rmdir in every hierarchy; false (and kept) while populated.
  virtual bool remove() = 0;
  // For another exec instead of a new one, when it is empty: limits as at the
  // start. Counters go on from where they are.
  virtual void renew() = 0;
};

// A limit as the kernel has it, in its words.
struct LimitFact {
  std::string group;  // "work" or "agent"
  std::string file;   // "memory.max"
  std::string value;
  std::string missing;  // "" = read; else why not
};

// The cgroup of a process of ours that works for one sandbox (cordon-copier).
// Its directory goes with the sandbox's in any case.
class HelperGroup {
 public:
  virtual ~HelperGroup() noexcept(false) = default;
  // As SandboxCgroups::initFds(), for the process that is to be in it.
  virtual std::vector<kj::AutoCloseFd> initFds() = 0;
  // As ExecLeaf's.
  virtual bool killPass() = 0;
  virtual bool remove() = 0;
};

enum class HelperPlace : uint8_t {
  kBeside,  // agent and work, with limits of its own
  kInWork,  // charged to the workload: its memory, its CPU
};

class SandboxCgroups {
 public:
  virtual ~SandboxCgroups() noexcept(false) = default;
  virtual CgroupMode mode() const = 0;
  // Absolute path below the hierarchies' mount point, e.g.
  // "/cordon/ab12/sb-xyz"; OCI cgroupsPath is this + "/agent".
  virtual const std::string& path() const = 0;
  // The directory is new; `number` is of its name, exec-N.
  virtual kj::Own<ExecLeaf> createExec(uint32_t number) = 0;
  // True when work is at its memory limit and little of that can be reclaimed:
  // the kernel charges a new leaf to work, and mkdir would search for pages and
  // kill, for up to a second.
  virtual bool memoryTight() { return false; }
  // Scope `sandbox` (work) and `host` (ancestors' pids.events and the like).
  virtual Counters read() = 0;
  // What limits work and agent, read anew.
  virtual std::vector<LimitFact> readLimits() { return {}; }
  // One pass over agent, work and all leaves, as ExecLeaf::killPass.
  virtual bool killPass() = 0;
  // Removes every directory of the sandbox in every hierarchy, deepest first.
  // Returns what is left (empty = done); cheap to call again.
  virtual std::vector<LeftOver> removePass() = 0;
  // Directories that existed, for the receipt.
  virtual std::vector<std::string> directories() const = 0;
  // For whoever becomes the sandbox's init: v1, the `tasks` of agent in each
  // hierarchy (it writes "0"), to be asked for once; v2, agent's directory (it is
  // born there).
  virtual std::vector<kj::AutoCloseFd> initFds() { return {}; }
  // A v2 cgroup-namespace fd rooted at NAME (NOTES-jail 11), or -1 on v1.
  virtual int namespaceFd() const = 0;

  // Asks the kernel to stop the workload where it is (v1: the whole sandbox, by the
  // freezer; v2: work); frozen() says when it has. errno, ENOTSUP: no freezer here.
  // A v1 process dies only when it has been thawed; killPass() sees to that.
  virtual int freeze() { return ENOTSUP; }
  virtual bool frozen() { return false; }
  virtual int thaw() { return ENOTSUP; }
  // At most one of each place at a time.
  virtual kj::OneOf<kj::Own<HelperGroup>, LimitNotApplied> createHelper(HelperPlace) {
    return LimitNotApplied{"cgroup", ENOTSUP};
  }
};

class CgroupTree {
 public:
  virtual ~CgroupTree() noexcept(false) = default;
  // Finds the hierarchies from /proc/self/mountinfo and /proc/self/cgroup and
  // makes BASE/INSTANCE. Never fails for want of cgroups: mode() is kNone then
  // and whyNone() says why and what to do.
  static kj::Own<CgroupTree> open(const std::string& base, const std::string& instance);

  virtual CgroupMode mode() const = 0;
  virtual std::string whyNone() const = 0;
  virtual std::string describe() const = 0;  // "cgroup v1 (memory, pids, cpu, cpuacct)"
  // mkdir, limits written and read back. After LimitNotApplied or an exception
  // something may be left where the host is out of descriptors: adopt() it. Not
  // so after EEXIST of "mkdir": the name is somebody else's.
  // agentHostUid: on v2 it is given cgroup.procs of NAME and of each exec-N.
  virtual kj::OneOf<kj::Own<SandboxCgroups>, LimitNotApplied> create(const std::string& name,
                                                                     const ResolvedLimits& limits,
                                                                     uint32_t agentHostUid) = 0;
  // What an earlier broker left under that name, to kill and remove. `path`: as
  // pathOf() was for that broker, whose base may have been another; "" = the
  // same.
  virtual kj::Own<SandboxCgroups> adopt(const std::string& name, const std::string& path = "") = 0;
  // SandboxCgroups::path() of a sandbox of that name.
  virtual std::string pathOf(const std::string& name) const = 0;
  // Names of sandbox directories that exist below BASE/INSTANCE.
  virtual std::vector<std::string> names() = 0;
  // Removes BASE/INSTANCE (and BASE when empty); true when gone.
  virtual bool removeInstance() = 0;
};

}  // namespace cordon::broker
