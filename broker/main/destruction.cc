#include "broker/main/destruction.h"

#include <errno.h>
#include <fcntl.h>
#include <kj/debug.h>
#include <kj/vector.h>
#include <spdlog/spdlog.h>
#include <string.h>

#include <algorithm>

#include "broker/main/process_tree.h"
#include "broker/off_loop.h"
#include "runtimes/remove_tree.h"

namespace cordon::broker {

namespace {
constexpr auto kAgentEndsItself = 2 * kj::SECONDS;
constexpr auto kInitEnds = 5 * kj::SECONDS;
constexpr auto kProcessesEnd = 5 * kj::SECONDS;
constexpr auto kContainerGoes = 5 * kj::SECONDS;
constexpr auto kCgroupsGo = 2 * kj::SECONDS;
constexpr auto kDirectoryGoes = 10 * kj::SECONDS;
constexpr auto kSlice = 2 * kj::MILLISECONDS;
constexpr auto kFirstRetry = 1 * kj::SECONDS;
constexpr auto kLongestRetry = 60 * kj::SECONDS;

// For as long as one turn may work. errno, EAGAIN when there is more to do.
int removeSlice(const std::string& directory) {
  size_t slash = directory.rfind('/');
  kj::AutoCloseFd parent(
      open(directory.substr(0, slash).c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (parent.get() < 0) return errno;
  auto left = runtimes::removeTree(parent.get(), directory.substr(slash + 1), kSlice);
  return left.empty() ? 0 : left.front().error;
}
}  // namespace

struct Destruction::Attempt {
  explicit Attempt(Sandbox& s, std::string reason) : sandbox(s), why(std::move(reason)) {}
  Sandbox& sandbox;
  std::string why;
  StepTimes times;
  Receipt receipt;
  kj::Maybe<kj::TimePoint> until;  // of the step that loops
  uint32_t pass = 0;

  void removed(const char* kind, std::string name) {
    receipt.removed.push_back({kind, std::move(name), 0});
  }
  void left(const char* kind, std::string name, int error) {
    receipt.left.push_back({kind, std::move(name), error});
  }
  // True once the step has looped for longer than `bound`.
  bool overdue(kj::TimePoint now, kj::Duration bound) {
    if (until == nullptr) until = now + bound;
    return now >= KJ_ASSERT_NONNULL(until);
  }
  void stepDone() {
    until = nullptr;
    pass = 0;
  }
};

Destruction::Destruction(Services& services, Registry& registry)
    : services_(services), registry_(registry), tasks_(*this) {}

kj::Promise<Receipt> Destruction::destroy(Sandbox& sandbox, std::string why) {
  if (!sandbox.destroyRunning && !sandbox.gone) {
    sandbox.destroyRunning = true;
    ++sandbox.destroyAttempts;
    auto& running =
        sandbox.destroying.emplace(kj::evalLater([this, &sandbox, why = std::move(why)]() mutable {
                                     return run(sandbox, std::move(why));
                                   }).fork());
    // Keeps it going, and the sandbox alive, whoever else waits.
    tasks_.add(running.addBranch().ignoreResult().attach(kj::addRef(sandbox)));
  }
  return KJ_ASSERT_NONNULL(sandbox.destroying).addBranch();
}

kj::Promise<void> Destruction::destroyAll(std::string why) {
  auto sandboxes = registry_.all();
  kj::Vector<kj::Promise<void>> receipts(sandboxes.size());
  for (auto& sandbox : sandboxes) {
    if (sandbox->entry.state == rpc::SandboxState::CREATING) continue;
    receipts.add(destroy(*sandbox, why).ignoreResult());
  }
  return kj::joinPromises(receipts.releaseAsArray());
}

kj::Promise<Receipt> Destruction::run(Sandbox& sandbox, std::string why) {
  auto attempt = kj::heap<Attempt>(sandbox, std::move(why));
  auto& a = *attempt;
  return runFrom(a, 0)
      .catch_([&a](kj::Exception&& exception) {
        fault("destroy", exception);
        a.left("sandbox", a.sandbox.name(), EIO);
      })
      .then([this, &a]() { return finish(a); })
      .attach(kj::mv(attempt));
}

kj::Promise<void> Destruction::runFrom(Attempt& attempt, size_t step) {
  static constexpr struct {
    const char* name;
    Step run;
  } kSteps[] = {
      // First: nobody reaches it from here on. Its record is not rewritten:
      // whatever is recorded at a restart is destroyed.
      {"mark", &Destruction::markDestroying},
      // Before the cgroups: killing a pid namespace's init takes all of it.
      {"init", &Destruction::endInit},
      // Also what was never inside the pid namespace, e.g. a runtime's helper.
      {"processes", &Destruction::emptyCgroups},
      // Its state may name the cgroups and the directory, so it goes before them.
      {"container", &Destruction::cleanRuntime},
      {"cgroups", &Destruction::removeCgroups},
      // After the processes: nobody writes to it any more.
      {"directory", &Destruction::removeDirectory},
      // Last: an id range given back while a process or file of it is left
      // would be somebody else's.
      {"ids", &Destruction::giveBack},
  };
  if (step == std::size(kSteps)) return kj::READY_NOW;
  auto turn = services_.clock.turn(kSteps[step].name);
  // On its own: with UBSan, GCC 12 indexes with garbage inside the call.
  Step now = kSteps[step].run;
  return (this->*now)(attempt).then([this, &attempt, step]() {
    attempt.times.done(kSteps[step].name);
    attempt.stepDone();
    return runFrom(attempt, step + 1);
  });
}

kj::Promise<void> Destruction::markDestroying(Attempt& a) {
  auto& sandbox = a.sandbox;
  sandbox.entry.state = rpc::SandboxState::DESTROYING;
  sandbox.watch = nullptr;
  sandbox.expiry = nullptr;
  KJ_IF_MAYBE (execs, sandbox.execs) {
    (*execs)->stop();
  }
  closeReadyStream(sandbox);
  // Thaws what it had frozen: on v1 nothing frozen dies.
  sandbox.snapshotting = nullptr;
  closeLayers(a);
  return kj::READY_NOW;
}

// The agent may have sent what takes as long to be closed as it likes: a TCP
// socket that lingers.
void Destruction::closeReadyStream(Sandbox& sandbox) {
  if (sandbox.readyStream.get() < 0) return;
  tasks_.add(offLoop([end = kj::mv(sandbox.readyStream)]() mutable { end = nullptr; }));
}

// While the init lives, its own mounts are the last of these files'. Once it is dead
// ours are, and the kernel then frees every file before close() returns.
void Destruction::closeLayers(Attempt& a) {
  auto& sandbox = a.sandbox;
  if (sandbox.layers.empty()) return;
  a.removed("mount", std::to_string(sandbox.layers.size()) + " writable layers");
  if (sandbox.initStatus() == nullptr) return sandbox.layers.clear();
  auto closed = offLoop([layers = kj::mv(sandbox.layers)]() mutable { layers.clear(); });
  sandbox.layers.clear();
  tasks_.add(kj::mv(closed));
}

kj::Promise<void> Destruction::endInit(Attempt& a) {
  auto& sandbox = a.sandbox;
  KJ_IF_MAYBE (found, sandbox.init) {
    Child& init = **found;
    std::string name = "init " + std::to_string(init.pid());
    auto over = [&a, name]() { a.removed("process", name); };
    kj::Promise<void> polite = kj::READY_NOW;
    if (sandbox.cgroups == nullptr) {
      KJ_IF_MAYBE (control, sandbox.control) {
        (*control)->close();
      }
      polite =
          init.onExit().ignoreResult().exclusiveJoin(services_.timer.afterDelay(kAgentEndsItself));
    }
    return polite
        .then([&sandbox, &init, name]() {
          KJ_IF_MAYBE (control, sandbox.control) {
            (*control)->close();
          }
          if (init.exited() != nullptr) return;
          if (sandbox.cgroups == nullptr) {
            spdlog::warn("{}: its agent does not end by itself: killing its tree", sandbox.name());
            killTree(init.pid());
          }
          init.signal(SIGKILL);
        })
        .then([this, &init]() {
          return init.onExit().ignoreResult().exclusiveJoin(services_.timer.afterDelay(kInitEnds));
        })
        .then([this, &a, &init, name, over]() {
          if (init.exited() != nullptr) {
            over();
          } else {
            a.left("process", name, ETIMEDOUT);
          }
          services_.children.reapStrays();
        });
  }
  KJ_IF_MAYBE (control, sandbox.control) {
    (*control)->close();
  }
  return kj::READY_NOW;
}

kj::Promise<void> Destruction::emptyCgroups(Attempt& a) {
  KJ_IF_MAYBE (cgroups, a.sandbox.cgroups) {
    auto turn = services_.clock.turn("destroy: kill pass");
    // Nothing outlives the init of a pid namespace, so there is nothing to look
    // for: the kernel removes no directory that holds a process. Not where a
    // runtime's state may name them.
    bool atOnce = a.pass++ == 0 && a.sandbox.initStatus() != nullptr &&
                  a.sandbox.runtime != nullptr && !a.sandbox.runtime->keepsState();
    if (atOnce && (*cgroups)->removePass().empty()) {
      for (auto& directory : (*cgroups)->directories()) a.removed("cgroup", directory);
      a.sandbox.cgroups = nullptr;
      return kj::READY_NOW;
    }
    if ((*cgroups)->killPass()) return kj::READY_NOW;
    if (a.overdue(services_.timer.now(), kProcessesEnd)) {
      a.left("process", "in " + (*cgroups)->path(), ETIMEDOUT);
      return kj::READY_NOW;
    }
    return services_.timer.afterDelay(1 * kj::MILLISECONDS).then([this, &a]() {
      return emptyCgroups(a);
    });
  }
  return kj::READY_NOW;
}

kj::Promise<void> Destruction::cleanRuntime(Attempt& a) {
  auto& sandbox = a.sandbox;
  if (!sandbox.runtimeUsed) return kj::READY_NOW;
  auto turn = services_.clock.turn("destroy: container");
  std::vector<LeftOver> rest;
  std::string of;
  // A damaged record doesn't say which runtime it was; cleanup() of the others
  // finds nothing.
  for (auto& runtime : services_.runtimes.all()) {
    if (sandbox.runtime != nullptr && sandbox.runtime != runtime.get()) continue;
    of += (of.empty() ? "" : "+") + std::string(runtime->name());
    auto more = runtime->cleanup(sandbox.name(), sandbox.entry.directory);
    rest.insert(rest.end(), more.begin(), more.end());
  }
  if (rest.empty()) {
    a.removed("container", of + ":" + sandbox.name());
    return kj::READY_NOW;
  }
  // A runtime works in short turns, too, so a large tree takes several.
  if (a.overdue(services_.timer.now(), kContainerGoes)) {
    for (auto& item : rest) a.receipt.left.push_back(std::move(item));
    return kj::READY_NOW;
  }
  return services_.timer.afterDelay(std::min(a.pass++, 20u) * kj::MILLISECONDS).then([this, &a]() {
    return cleanRuntime(a);
  });
}

kj::Promise<void> Destruction::removeCgroups(Attempt& a) {
  KJ_IF_MAYBE (cgroups, a.sandbox.cgroups) {
    auto turn = services_.clock.turn("destroy: cgroups");
    if (a.pass == 0) {
      for (auto& directory : (*cgroups)->directories()) a.removed("cgroup", directory);
    }
    auto rest = (*cgroups)->removePass();
    if (rest.empty()) {
      a.sandbox.cgroups = nullptr;
      return kj::READY_NOW;
    }
    if (a.overdue(services_.timer.now(), kCgroupsGo)) {
      auto isLeft = [&rest](const LeftOver& item) {
        return item.kind == "cgroup" &&
               std::any_of(rest.begin(), rest.end(),
                           [&item](const LeftOver& l) { return l.name == item.name; });
      };
      auto& removed = a.receipt.removed;
      removed.erase(std::remove_if(removed.begin(), removed.end(), isLeft), removed.end());
      for (auto& item : rest) a.receipt.left.push_back(std::move(item));
      return kj::READY_NOW;
    }
    auto pause = (1 << std::min(a.pass++, 5u)) * kj::MILLISECONDS;
    return services_.timer.afterDelay(pause).then([this, &a]() { return removeCgroups(a); });
  }
  return kj::READY_NOW;
}

kj::Promise<void> Destruction::removeDirectory(Attempt& a) {
  auto& sandbox = a.sandbox;
  if (!sandbox.directoryMade) return kj::READY_NOW;
  auto turn = services_.clock.turn("destroy: directory");
  int error = removeSlice(sandbox.entry.directory);
  if (error == 0) {
    sandbox.directoryMade = false;
    a.removed("directory", sandbox.entry.directory);
    return kj::READY_NOW;
  }
  bool overdue = a.overdue(services_.timer.now(), kDirectoryGoes);
  if (error != EAGAIN || overdue) {
    a.left("directory", sandbox.entry.directory, overdue ? ETIMEDOUT : error);
    return kj::READY_NOW;
  }
  return kj::evalLater([this, &a]() { return removeDirectory(a); });
}

kj::Promise<void> Destruction::giveBack(Attempt& a) {
  auto& sandbox = a.sandbox;
  if (!sandbox.recorded) return kj::READY_NOW;
  if (!a.receipt.left.empty()) {
    keepInRecord(a);
    return kj::READY_NOW;
  }
  return services_.ledger.close(sandbox.entry).then([this, &a](std::vector<LeftOver> rest) {
    a.receipt.left = std::move(rest);
    if (!a.receipt.left.empty()) return keepInRecord(a);
    auto& entry = a.sandbox.entry;
    a.sandbox.recorded = false;
    if (entry.idCount > 0) a.removed("id-range", std::to_string(entry.idFirst));
    a.removed("record", entry.name);
  });
}

void Destruction::keepInRecord(Attempt& a) {
  auto& sandbox = a.sandbox;
  sandbox.entry.left = a.receipt.left;
  KJ_IF_MAYBE (refused, services_.ledger.update(sandbox.entry)) {
    spdlog::warn("{}: what is left is not in its record: {}", sandbox.name(), refused->detail);
  }
}

Receipt Destruction::finish(Attempt& a) {
  auto& sandbox = a.sandbox;
  a.receipt.complete = a.receipt.left.empty();
  sandbox.destroyRunning = false;
  if (a.receipt.complete) {
    spdlog::info("{}: destroyed ({}), owner {}, {} items removed; ms: {}", sandbox.name(), a.why,
                 sandbox.entry.ownerUid, a.receipt.removed.size(), a.times.text());
    sandbox.gone = true;
    sandbox.control = nullptr;
    registry_.erase(sandbox.name());
  } else {
    for (auto& item : a.receipt.left) {
      spdlog::error("{}: could not remove {} {}: {}", sandbox.name(), item.kind, item.name,
                    strerror(item.error));
    }
    retryLater(sandbox);
  }
  return a.receipt;
}

void Destruction::retryLater(Sandbox& sandbox) {
  auto delay = std::min(sandbox.destroyAttempts, 60u) * kFirstRetry;
  tasks_.add(services_.timer.afterDelay(kj::min(delay, kLongestRetry))
                 .then([this, &sandbox]() {
                   if (!sandbox.gone) destroy(sandbox, "retry").detach([](kj::Exception&&) {});
                 })
                 .attach(kj::addRef(sandbox)));
}

void Destruction::taskFailed(kj::Exception&& exception) {
  fault("destroy", exception);
}

}  // namespace cordon::broker
