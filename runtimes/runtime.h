// The runtime contract: what `host`, `runc` (and later jail, gvisor,
// firecracker) implement. Runs in the broker, on its loop's thread.
//
// Division of work. The broker (registry) makes the record, the id range, the
// cgroups, the sandbox's directory and the control socket before create(), and
// does everything about execs itself over the control socket. A runtime starts
// vm-agent behind its boundary and, at the end, removes what it made itself.
// `exec` rides on the stream to vm-agent: after create no privileged process
// enters a sandbox, so there is no exec here.
#pragma once
#include <kj/async.h>
#include <kj/io.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "broker/cgroups.h"
#include "broker/children.h"
#include "broker/kernel_facts.h"
#include "broker/limits.h"
#include "copier/job.h"
#include "runtimes/mount_plan.h"

namespace cordon::runtimes {

// What this host can do; where it cannot, why, and how to fix it.
struct Probe {
  bool available = false;
  std::string reason;  // "" when available
  std::string fix;
  std::string version;
  std::vector<std::string> notes;  // e.g. "CVE-2024-45310 is not fixed in 1.1.5"

  static Probe no(std::string why, std::string whatHelps) {
    Probe probe;
    probe.reason = std::move(why);
    probe.fix = std::move(whatHelps);
    return probe;
  }
};

struct IdRange {
  uint32_t first = 0;  // first host uid and gid
  uint32_t count = 0;  // 65536, or 0 = no range (host)
};

// One of the mounts that an image's tree consists of.
struct ImageMount {
  std::string where;      // relative to the root; "" = the root itself, which comes first
  bool directory = true;  // else a single file
  // Its files are the image's own: ids on them are inside ids. Not so for what
  // is the host's (host-usr), whose files are nobody's inside.
  bool own = true;
};

// An image as a runtime mounts it (runtimes/images.h makes it).
struct Image {
  std::string name;
  // Skeleton: a ro,nosuid,nodev mount that the broker built and owns (mount
  // points, symlinks, synthetic files) with everything else already bound
  // beneath it, the agent at /.cordon/vm-agent included. A runtime binds it
  // recursively. Shared by all sandboxes of the image, never written.
  std::string rootfs;
  std::vector<ImageMount> mounts;  // parents before what is mounted in them
  // Where the host's files show their owners all the same (a writable root on
  // host-usr): what the host keeps from others is masked. Relative paths.
  std::vector<std::string> closed;
  // Changes when the image's directory is replaced: what a snapshot is of. It does
  // not see every change within.
  std::string identity;
  uint32_t defaultUid = 1000;  // inside ids
  uint32_t defaultGid = 1000;
};

struct CreateRequest {
  std::string name;
  std::string hostname;
  std::string directory;         // exists, empty, root-owned 0711: bundle and state
  const Image* image = nullptr;  // null for `host`; outlives create()
  broker::ResolvedLimits limits;
  // Programs are to be explained: the agent's own filter asks where it refuses
  // otherwise (jailer/seccomp_asking.h).
  bool explain = false;
  IdRange ids;
  broker::SandboxCgroups* cgroups = nullptr;  // null for `host`; outlives create()
  // With a core scheduling cookie of its own; a create that can't give it one
  // fails. Not for `host`.
  bool ownCore = false;
  // The agent's end of the control socket: fd 0 of vm-agent. The broker has
  // queued the AgentConfig on the other end already.
  kj::AutoCloseFd control;
  // A snapshot will be put into its layers before it is used.
  bool willRestore = false;
};

// Why a create failed. `detail` is ours, never the runtime's stderr.
struct CreateFailure {
  rpc::Reason reason;
  std::string detail;
  int error = 0;
};

// What can be written in a sandbox, as detached mounts that nothing inside reaches:
// for its runtime's snapshot() and restore() alone. Read-only, but for a sandbox
// that is restored until that is done. They pin the files, so whoever destroys the
// sandbox closes them.
using Layers = std::vector<kj::AutoCloseFd>;

// Which cookie everything in a sandbox has, and whom the kernel told.
struct CoreCookie {
  uint64_t value = 0;  // 0 = none
  const char* from = "";
};

// A started sandbox: its init, whose death ends it.
struct Started {
  kj::Own<broker::Child> init;
  // What its making was made of, in order, for the log: name and nanoseconds.
  std::vector<std::pair<std::string, int64_t>> steps = {};
  // Of the sandbox, as the kernel told our own program inside them; 0 where
  // nobody of ours was in a position to read it.
  broker::NamespaceInodes namespaces{};
  CoreCookie core{};
  Layers layers = {};  // empty where the runtime has no snapshots
};

// One run of cordon-copier, for a snapshot or a restore. What is pointed at
// outlives the promise.
struct CopyRequest {
  std::string name;  // of the sandbox
  const Image* image = nullptr;
  IdRange ids;
  const Layers* layers = nullptr;
  broker::SandboxCgroups* cgroups = nullptr;
  broker::HelperGroup* group = nullptr;
  int archive = -1;  // a file of ours, that it writes or reads
  copier::Job job;
  kj::Duration timeout = 30 * kj::SECONDS;
};
// What it told, numbers alone; or that it could not be run.
using CopyResult = kj::OneOf<copier::Report, CreateFailure>;

class Copying;  // copying.h

class Runtime {
 public:
  virtual ~Runtime() noexcept(false) = default;
  virtual const char* name() const = 0;
  virtual bool isSandbox() const = 0;  // false for `host` alone
  virtual bool needsCgroups() const = 0;
  virtual bool needsImage() const = 0;
  // Whether limits.rootBytes may be other than 0.
  virtual bool canWriteRoot() const { return false; }
  // create() can't put on the filter that `explain` wants: the agent does.
  virtual bool agentLoadsAskingFilter() const { return false; }
  // Asked at start and cached; asked again when it said no.
  virtual kj::Promise<Probe> probe() = 0;
  // Resolves when init runs (the registry then waits for the agent's hello).
  // On failure everything the runtime made is gone.
  virtual kj::Promise<kj::OneOf<Started, CreateFailure>> create(CreateRequest request) = 0;
  // Removes the runtime's own state for `name` (all its processes are dead or
  // it never started). Idempotent; returns what could not be removed.
  virtual std::vector<broker::LeftOver> cleanup(const std::string& name,
                                                const std::string& directory) = 0;
  // False: cleanup() never finds anything.
  virtual bool keepsState() const { return true; }
  // What create() mounts for this request, in order; what an image has there
  // stands in it as well. Nothing is done.
  virtual MountPlan mountPlan(const CreateRequest&) const { return {}; }
  // As its program or we call it; "" = never asked.
  virtual std::string version() const { return ""; }
  // Who chooses the arguments of the calls that reach the host's kernel.
  virtual const char* argumentsChosenBy() const {
    return "the program itself, filtered by seccomp";
  }
  // What a snapshot holds ("filesystem"), or "" where there are none.
  virtual const char* snapshotKind() const { return ""; }
  // Copies the layers of a frozen sandbox into an archive, or an archive into the
  // layers of a new one, which are read-only afterwards. Both by an unprivileged
  // process in a jail of its own; none is left when the promise has been resolved,
  // and when it is dropped, the group has been told to die.
  virtual kj::Promise<CopyResult> snapshot(CopyRequest) { return noSnapshots(); }
  virtual kj::Promise<CopyResult> restore(CopyRequest) { return noSnapshots(); }
  // One line for the inspect card; the workload's seccomp profile is not in it.
  virtual std::string isolation() const = 0;

 private:
  static kj::Promise<CopyResult> noSnapshots() {
    return CopyResult(CreateFailure{rpc::Reason::UNSUPPORTED, "this runtime has no snapshots"});
  }
};

}  // namespace cordon::runtimes
