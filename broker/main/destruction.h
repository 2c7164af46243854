// Taking a sandbox apart, down to a receipt. Also undoes half a creation and
// finishes what an earlier broker left.
//
// In order (each step copes with what was never made):
//   1. mark       nobody reaches it any more; its timers and execs stop, a snapshot
//                 in progress ends and thaws it, its layers are closed
//   2. init       SIGKILL by pidfd, its end awaited; without cgroups the control
//                 socket closes first: the agent then kills everything itself
//   3. processes  where init was awaited and the runtime keeps no state, the
//                 cgroups are removed at once: the kernel refuses that while one
//                 holds a process. Else, and where it refused: kill passes over
//                 all of them until none is left
//   4. container  the runtime removes what it made
//   5. cgroups    rmdir, deepest first, in every hierarchy
//   6. directory  the tree, without following links
//   7. id range and record, only when nothing is left
// What can't be removed is listed in the receipt, kept in the record and tried
// again on a timer.
#pragma once
#include <kj/async.h>

#include <string>

#include "broker/main/registry.h"
#include "broker/main/sandbox.h"
#include "broker/main/services.h"
#include "broker/main/step_times.h"

namespace cordon::broker {

class Destruction final : private kj::TaskSet::ErrorHandler {
 public:
  Destruction(Services& services, Registry& registry);
  KJ_DISALLOW_COPY(Destruction);

  // Goes on when the promise is dropped. Concurrent calls share one attempt;
  // one that is gone answers its last receipt. Never rejects.
  kj::Promise<Receipt> destroy(Sandbox& sandbox, std::string why);

  // All at once, other than those being made (Creation undoes these); resolves
  // when each has had one attempt.
  kj::Promise<void> destroyAll(std::string why);

 private:
  struct Attempt;
  using Step = kj::Promise<void> (Destruction::*)(Attempt&);

  kj::Promise<Receipt> run(Sandbox& sandbox, std::string why);
  kj::Promise<void> runFrom(Attempt& attempt, size_t step);
  kj::Promise<void> markDestroying(Attempt& attempt);
  void closeReadyStream(Sandbox& sandbox);
  void closeLayers(Attempt& attempt);
  kj::Promise<void> endInit(Attempt& attempt);
  kj::Promise<void> emptyCgroups(Attempt& attempt);
  kj::Promise<void> cleanRuntime(Attempt& attempt);
  kj::Promise<void> removeCgroups(Attempt& attempt);
  kj::Promise<void> removeDirectory(Attempt& attempt);
  kj::Promise<void> giveBack(Attempt& attempt);
  void keepInRecord(Attempt& attempt);
  Receipt finish(Attempt& attempt);
  void retryLater(Sandbox& sandbox);
  void taskFailed(kj::Exception&& exception) override;

  Services& services_;
  Registry& registry_;
  kj::TaskSet tasks_;
};

}  // namespace cordon::broker
