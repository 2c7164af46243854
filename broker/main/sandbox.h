// One sandbox: its identity, what was made for it, and how far it is.
//
// Creation fills it in, in the order of the members under "effects";
// Destruction takes it apart in the opposite order and copes with any of them
// being absent, so undoing half a creation is the same code.
#pragma once
#include <kj/async.h>
#include <kj/refcount.h>
#include <kj/timer.h>

#include <memory>
#include <string>
#include <vector>

#include "broker/cgroups.h"
#include "broker/children.h"
#include "broker/kernel_facts.h"
#include "broker/main/control_channel.h"
#include "broker/main/execs.h"
#include "broker/main/ledger.h"
#include "broker/main/peer_scope.h"
#include "broker/main/spec.h"
#include "broker/main/workload_profile.h"
#include "runtimes/runtime.h"

namespace cordon::broker {

struct Receipt {
  bool complete = false;
  std::vector<LeftOver> removed;  // error 0
  std::vector<LeftOver> left;
};

class Sandbox final : public kj::Refcounted {
 public:
  explicit Sandbox(kj::TimePoint now) : created(now) {}
  KJ_DISALLOW_COPY(Sandbox);

  const std::string& name() const { return entry.name; }
  runtimes::IdRange ids() const { return {entry.idFirst, entry.idCount}; }
  // The init's end as waitid told it; null while it runs.
  kj::Maybe<ExitStatus> initStatus() const {
    KJ_IF_MAYBE (child, init) {
      return (*child)->exited();
    }
    return nullptr;
  }

  // Identity.
  SandboxRecord entry;  // name, owner, token's hash, ids, state: as recorded
  ValidSpec spec;
  kj::TimePoint created;
  runtimes::Runtime* runtime = nullptr;      // null: recovered, its runtime unknown
  const WorkloadProfile* profile = nullptr;  // null: none, or not chosen yet
  std::shared_ptr<const runtimes::Image> image;
  bool gone = false;  // nothing is left of it
  // With the end of whose connection it is destroyed.
  kj::Maybe<kj::Own<PeerScope>> keeper;

  // Effects, in the order they are made.
  bool recorded = false;
  bool directoryMade = false;
  kj::Maybe<kj::Own<SandboxCgroups>> cgroups;
  kj::Maybe<kj::Own<ControlChannel>> control;
  kj::Maybe<kj::Own<Execs>> execs;
  // The stream that showed readiness, for the first connect().
  kj::AutoCloseFd readyStream;
  kj::Maybe<kj::Own<Child>> init;
  NamespaceInodes namespaces{};  // as the runtime reported them; 0 = it can't
  // Of what can be written inside: they pin it.
  runtimes::Layers layers;
  runtimes::CoreCookie core;
  std::string whyNoCore;     // "" = it has one
  bool runtimeUsed = false;  // create() was called: its cleanup() has work

  // Timers and watches.
  kj::Maybe<kj::Promise<void>> watch;   // for the init's death
  kj::Maybe<kj::Promise<void>> expiry;  // time to live, idle limit

  // A snapshot in progress. Dropping it ends it: nothing is frozen or copied then.
  kj::Maybe<kj::Promise<void>> snapshotting;
  bool snapshotBusy = false;

  // The destroy in progress, or the last one.
  bool destroyRunning = false;
  kj::Maybe<kj::ForkedPromise<Receipt>> destroying;
  uint32_t destroyAttempts = 0;
};

}  // namespace cordon::broker
