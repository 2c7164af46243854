// v1 and hybrid: memory, pids, cpu and cpuacct in hierarchies of their own (or
// some of them co-mounted). The same path in each.
#include <errno.h>
#include <fcntl.h>
#include <kj/debug.h>
#include <unistd.h>

#include <array>

#include "broker/cgroups_sweep.h"
#include "broker/cgroups_tree.h"

namespace cordon::broker {

namespace {

// What may wait in a sandbox's sockets besides its memory.
constexpr uint64_t kSocketShare = 4;

constexpr std::array<const char*, 4> kControllers = {"memory", "pids", "cpu", "cpuacct"};

// Where an exec has a leaf. Not in cpu alone: the rate is the sandbox's, and the
// exec joins work there.
bool hasLeaves(const Hierarchy& h) {
  return h.has("memory") || h.has("pids") || h.has("cpuacct");
}

// One hierarchy that we use, with the directories of one sandbox in it.
struct Place {
  const MountedHierarchy* hierarchy;
  CgroupDir work;
  kj::Maybe<CgroupDir> agent;  // until its descriptors have been handed out
};

struct V1Sandbox {
  std::shared_ptr<const TreeData> tree;  // keeps Place::hierarchy
  std::vector<Place> places;
  ResolvedLimits limits;
  kj::AutoCloseFd cpuTasks;  // work's `tasks` in cpu, when cpu has no exec leaf
  std::string path;
  const MountedHierarchy* freezer = nullptr;  // where NAME can be frozen

  const Place& of(const char* controller) const {
    for (auto& place : places) {
      if (place.hierarchy->info.has(controller)) return place;
    }
    KJ_FAIL_ASSERT("no such hierarchy", controller);
  }
  const CgroupDir& agentOf(const char* controller) const {
    return KJ_ASSERT_NONNULL(of(controller).agent);
  }
};

// A cpuset starts empty and refuses tasks until it has CPUs and nodes.
void inheritCpuset(const Hierarchy& hierarchy, const CgroupDir& parent, const CgroupDir& child) {
  if (!hierarchy.has("cpuset")) return;
  for (const char* file : {"cpuset.cpus", "cpuset.mems"}) {
    KJ_IF_MAYBE (own, child.read(file)) {
      if (own->size() > 1) continue;
    }
    KJ_IF_MAYBE (text, parent.read(file)) (void)child.write(file, *text);
  }
}

kj::AutoCloseFd mustOpen(const CgroupDir& dir, const char* file, int flags) {
  KJ_IF_MAYBE (fd, dir.openFile(file, flags)) return kj::mv(*fd);
  KJ_FAIL_SYSCALL("open", ENOENT, dir.label(), file);
}

kj::Maybe<LimitNotApplied> limitMemory(const CgroupDir& dir, uint64_t bytes) {
  KJ_IF_MAYBE (bad, applyLimit(dir, "memory.limit_in_bytes", bytes, ReadBack::kPages)) return *bad;
  // No swap: memory and memory+swap have the same limit, or, where the kernel
  // does not account swap, nothing is ever swapped out.
  if (dir.has("memory.memsw.limit_in_bytes")) {
    return applyLimit(dir, "memory.memsw.limit_in_bytes", bytes, ReadBack::kPages);
  }
  return applyLimit(dir, "memory.swappiness", 0);
}

// v1 counts what waits in sockets apart from other memory, and only where that
// has a limit. (v2 counts it as memory.)
kj::Maybe<LimitNotApplied> limitSockets(const CgroupDir& dir, uint64_t memoryBytes) {
  constexpr const char* kFile = "memory.kmem.tcp.limit_in_bytes";
  if (!dir.has(kFile)) return nullptr;  // a kernel without it
  return applyLimit(dir, kFile, memoryBytes / kSocketShare, ReadBack::kPages);
}

kj::Maybe<LimitNotApplied> limitWork(const V1Sandbox& s) {
  const CgroupDir& memory = s.of("memory").work;
  KJ_IF_MAYBE (bad, limitMemory(memory, s.limits.memoryBytes)) return *bad;
  KJ_IF_MAYBE (bad, limitSockets(memory, s.limits.memoryBytes)) return *bad;
  KJ_IF_MAYBE (bad, applyLimit(s.of("pids").work, "pids.max", s.limits.pids)) return *bad;
  const CgroupDir& cpu = s.of("cpu").work;
  KJ_IF_MAYBE (bad, applyLimit(cpu, "cpu.cfs_period_us", kCpuPeriodUs)) return *bad;
  return applyLimit(cpu, "cpu.cfs_quota_us", s.limits.cpuMillis * kCpuPeriodUs / 1000);
}

kj::Maybe<LimitNotApplied> limitAgent(const V1Sandbox& s) {
  KJ_IF_MAYBE (bad, limitMemory(s.agentOf("memory"), kAgentMemoryBytes)) return *bad;
  KJ_IF_MAYBE (bad, applyLimit(s.agentOf("pids"), "pids.max", kAgentPids)) return *bad;
  // Twice the workload's default: the agent must answer beside a busy one.
  return applyLimit(s.agentOf("cpu"), "cpu.shares", 2048);
}

void addMemory(CounterSet& set, const CgroupDir& dir, rpc::Scope scope) {
  set.add(dir, "memory.oom_control", "oom_kill", rpc::CounterKind::OOM_KILLS, scope);
  set.add(dir, "memory.max_usage_in_bytes", "", rpc::CounterKind::MEMORY_PEAK_BYTES, scope);
  set.add(dir, "memory.usage_in_bytes", "", rpc::CounterKind::MEMORY_USED_BYTES, scope);
}

void addPids(CounterSet& set, const CgroupDir& dir, rpc::Scope scope) {
  set.add(dir, "pids.events", "max", rpc::CounterKind::PIDS_REFUSED, scope);
  set.add(dir, "pids.current", "", rpc::CounterKind::PIDS_NOW, scope);
}

void addCpuUsage(CounterSet& set, const CgroupDir& dir, rpc::Scope scope) {
  const auto tick = static_cast<uint64_t>(1'000'000 / sysconf(_SC_CLK_TCK));
  set.add(dir, "cpuacct.usage", "", rpc::CounterKind::CPU_USAGE_US, scope, 1, 1000);
  set.add(dir, "cpuacct.stat", "user", rpc::CounterKind::CPU_USER_US, scope, tick);
  set.add(dir, "cpuacct.stat", "system", rpc::CounterKind::CPU_SYSTEM_US, scope, tick);
}

void addThrottling(CounterSet& set, const CgroupDir& dir, rpc::Scope scope) {
  set.add(dir, "cpu.stat", "nr_throttled", rpc::CounterKind::CPU_THROTTLED, scope);
  set.add(dir, "cpu.stat", "throttled_time", rpc::CounterKind::CPU_THROTTLED_US, scope, 1, 1000);
}

class V1Leaf final : public ExecLeaf {
 public:
  V1Leaf(std::shared_ptr<const V1Sandbox> sandbox, uint32_t number)
      : sandbox_(std::move(sandbox)), name_("exec-" + std::to_string(number)) {
    KJ_ON_SCOPE_FAILURE(remove());
    for (auto& place : sandbox_->places) {
      if (hasLeaves(place.hierarchy->info)) add(place);
    }
    // The same limit as on work: the kernel looks at the leaf first, so that a
    // refusal is counted at the exec whose fork it was.
    KJ_IF_MAYBE (bad, applyLimit(dirOf("pids"), "pids.max", sandbox_->limits.pids)) {
      KJ_FAIL_SYSCALL("write", bad->error, name_, bad->file);
    }
    // A socket is counted where its own cgroup has such a limit, and then in all
    // above it as well.
    KJ_IF_MAYBE (bad, limitSockets(dirOf("memory"), sandbox_->limits.memoryBytes)) {
      KJ_FAIL_SYSCALL("write", bad->error, name_, bad->file);
    }
    listing_ = mustOpen(dirOf("pids"), "cgroup.procs", O_RDONLY);
    addMemory(counters_, dirOf("memory"), rpc::Scope::EXEC);
    addPids(counters_, dirOf("pids"), rpc::Scope::EXEC);
    addCpuUsage(counters_, dirOf("cpuacct"), rpc::Scope::EXEC);
  }

  std::vector<int> agentFds() const override {
    std::vector<int> fds{listing_.get()};
    for (auto& leaf : leaves_) fds.push_back(leaf.tasks.get());
    if (sandbox_->cpuTasks.get() >= 0) fds.push_back(sandbox_->cpuTasks.get());
    return fds;
  }

  Counters read() override {
    Counters counters = counters_.read();
    KJ_IF_MAYBE (before, refusedBeforeKill_) {
      for (auto& counter : counters) {
        if (counter.kind == rpc::CounterKind::PIDS_REFUSED) counter.value = *before;
      }
    }
    return counters;
  }

  uint64_t cpuUsageUs() override { return counters_.value(rpc::CounterKind::CPU_USAGE_US); }
  bool populated() override {
    // One read where it is empty. A child that has joined another hierarchy and
    // not yet this one is seen by remove(), which then refuses; a zombie counts
    // until its parent has waited for it, and is not listed.
    return counters_.value(rpc::CounterKind::PIDS_NOW) != 0 && !processes().empty();
  }

  bool killPass() override {
    if (refusedBeforeKill_ == nullptr) {
      refusedBeforeKill_ = counters_.value(rpc::CounterKind::PIDS_REFUSED);
    }
    if (int error = dirOf("pids").write("pids.max", "0"); error != 0 && error != ENOENT) {
      if (error != ENODEV) KJ_FAIL_SYSCALL("write", error, dirOf("pids").label(), "pids.max");
    }
    return killListed([this] { return processes(); });
  }

  void renew() override {
    refusedBeforeKill_ = nullptr;
    KJ_IF_MAYBE (bad, applyLimit(dirOf("pids"), "pids.max", sandbox_->limits.pids)) {
      KJ_FAIL_SYSCALL("write", bad->error, name_, bad->file);
    }
    (void)dirOf("memory").write("memory.max_usage_in_bytes", "0");
  }

  bool remove() override {
    bool gone = true;
    for (auto& leaf : leaves_) gone = leaf.place->work.removeChild(name_) == 0 && gone;
    return gone;
  }

 private:
  struct Leaf {
    const Place* place;
    CgroupDir dir;
    kj::AutoCloseFd tasks;
  };

  void add(const Place& place) {
    int error = 0;
    auto made = place.work.makeNewChild(name_, error);
    KJ_IF_MAYBE (dir, made) {
      leaves_.push_back({&place, kj::mv(*dir), nullptr});  // remove() knows it now
      inheritCpuset(place.hierarchy->info, place.work, leaves_.back().dir);
      leaves_.back().tasks = mustOpen(leaves_.back().dir, "tasks", O_WRONLY);
    } else {
      KJ_FAIL_SYSCALL("mkdir", error, place.work.label(), name_);
    }
  }

  const CgroupDir& dirOf(const char* controller) const {
    for (auto& leaf : leaves_) {
      if (leaf.place->hierarchy->info.has(controller)) return leaf.dir;
    }
    KJ_FAIL_ASSERT("no such leaf", controller);
  }

  // In any of the hierarchies: a child may be half way through joining.
  std::vector<pid_t> processes() const {
    std::set<pid_t> pids;
    for (auto& leaf : leaves_) {
      for (pid_t pid : leaf.dir.processes()) pids.insert(pid);
    }
    return {pids.begin(), pids.end()};
  }

  std::shared_ptr<const V1Sandbox> sandbox_;
  std::string name_;
  std::vector<Leaf> leaves_;
  kj::AutoCloseFd listing_;
  CounterSet counters_;
  kj::Maybe<uint64_t> refusedBeforeKill_;
};

// The processes that are listed in any of `dirs`.
std::vector<pid_t> processesIn(const std::vector<CgroupDir>& dirs) {
  std::set<pid_t> pids;
  for (auto& dir : dirs) {
    for (pid_t pid : dir.processes()) pids.insert(pid);
  }
  return {pids.begin(), pids.end()};
}

class V1Helper final : public HelperGroup {
 public:
  V1Helper(std::shared_ptr<const V1Sandbox> sandbox, HelperPlace place)
      : sandbox_(std::move(sandbox)), place_(place) {}

  // What was made is removed by the caller.
  kj::Maybe<LimitNotApplied> build() {
    for (auto& place : sandbox_->places) {
      KJ_IF_MAYBE (bad, buildIn(place)) return *bad;
    }
    return nullptr;
  }

  std::vector<kj::AutoCloseFd> initFds() override {
    std::vector<kj::AutoCloseFd> fds;
    for (auto& dir : dirs_) fds.push_back(mustOpen(dir, "tasks", O_WRONLY));
    return fds;
  }
  bool killPass() override {
    for (auto& dir : dirs_) {
      if (dir.has("pids.max")) (void)dir.write("pids.max", "0");
    }
    return killListed([this] { return processesIn(dirs_); });
  }
  bool remove() override {
    bool gone = true;
    for (auto& place : sandbox_->places) {
      KJ_IF_MAYBE (parent, parentIn(place)) {
        gone = parent->removeChild(kHelperName) == 0 && gone;
      }
    }
    return gone;
  }

 private:
  kj::Maybe<LimitNotApplied> buildIn(const Place& place) {
    int error = ENOENT;
    auto parent = parentIn(place);
    KJ_IF_MAYBE (above, parent) {
      auto made = above->makeNewChild(kHelperName, error);
      KJ_IF_MAYBE (dir, made) {
        inheritCpuset(place.hierarchy->info, *above, *dir);
        dirs_.push_back(kj::mv(*dir));
        return limit(place.hierarchy->info);
      }
    }
    return LimitNotApplied{"mkdir", error};
  }

  // A helper is no task of the workload's: `pids` may be as low as 2.
  kj::Maybe<CgroupDir> parentIn(const Place& place) const {
    const Hierarchy& info = place.hierarchy->info;
    bool beside = place_ == HelperPlace::kBeside || (!info.has("memory") && info.has("pids"));
    return openBelow(place.hierarchy->mount, sandbox_->path + (beside ? "" : "/work"));
  }

  kj::Maybe<LimitNotApplied> limit(const Hierarchy& info) {
    if (info.has("pids")) {
      KJ_IF_MAYBE (bad, applyLimit(dirs_.back(), "pids.max", kHelperPids)) return *bad;
    }
    if (info.has("memory") && place_ == HelperPlace::kBeside) {
      return limitMemory(dirs_.back(), kHelperMemoryBytes);
    }
    return nullptr;
  }

  std::shared_ptr<const V1Sandbox> sandbox_;
  HelperPlace place_;
  std::vector<CgroupDir> dirs_;
};

class V1SandboxCgroups final : public SandboxBase {
 public:
  V1SandboxCgroups(std::shared_ptr<const TreeData> data, std::string name)
      : SandboxBase(data, std::move(name)), state_(std::make_shared<V1Sandbox>()) {
    state_->tree = std::move(data);
    state_->path = path();
  }

  // Directories and limits. What was made is removed by the caller.
  kj::Maybe<LimitNotApplied> build(const ResolvedLimits& limits) {
    state_->limits = limits;
    for (auto& h : tree().all) {
      bool used = false;
      for (const char* controller : kControllers) used = used || h.info.has(controller);
      if (!used || h.info.v2) continue;
      KJ_IF_MAYBE (bad, makePlace(h)) return *bad;
    }
    makeFreezer();
    KJ_IF_MAYBE (bad, limitWork(*state_)) return *bad;
    KJ_IF_MAYBE (bad, limitAgent(*state_)) return *bad;
    if (!hasLeaves(state_->of("cpu").hierarchy->info)) {
      state_->cpuTasks = mustOpen(state_->of("cpu").work, "tasks", O_WRONLY);
    }
    const CgroupDir& cpu = state_->of("cpu").work;
    addMemory(counters_, state_->of("memory").work, rpc::Scope::SANDBOX);
    addPids(counters_, state_->of("pids").work, rpc::Scope::SANDBOX);
    addCpuUsage(counters_, state_->of("cpuacct").work, rpc::Scope::SANDBOX);
    addThrottling(counters_, cpu, rpc::Scope::SANDBOX);
    return nullptr;
  }

  bool memoryTight() override {
    return isMemoryTight(state_->of("memory").work, "memory.usage_in_bytes",
                         {"total_inactive_file", "total_active_file"}, state_->limits.memoryBytes);
  }

  kj::Own<ExecLeaf> createExec(uint32_t number) override {
    return kj::heap<V1Leaf>(state_, number);
  }

  Counters read() override {
    Counters counters = counters_.read();
    for (auto& counter : tree().host.read()) counters.push_back(counter);
    return counters;
  }

  std::vector<LimitFact> readLimits() override {
    auto& memory = state_->of("memory");
    auto& pids = state_->of("pids");
    auto& cpu = state_->of("cpu");
    std::vector<LimitFact> facts;
    for (const char* file :
         {"memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.swappiness"}) {
      facts.push_back(readLimit(memory.work, "work", file));
    }
    facts.push_back(readLimit(pids.work, "work", "pids.max"));
    facts.push_back(readLimit(cpu.work, "work", "cpu.cfs_quota_us"));
    facts.push_back(readLimit(cpu.work, "work", "cpu.cfs_period_us"));
    for (auto [controller, file] : {std::pair{"memory", "memory.limit_in_bytes"},
                                    {"pids", "pids.max"},
                                    {"cpu", "cpu.shares"}}) {
      facts.push_back(readAgentLimit(controller, file));
    }
    return facts;
  }

  std::vector<kj::AutoCloseFd> initFds() override {
    std::vector<kj::AutoCloseFd> fds;
    for (auto& place : state_->places) {
      // Thousands of sandboxes live on one limit of descriptors.
      KJ_IF_MAYBE (agent, place.agent) fds.push_back(mustOpen(*agent, "tasks", O_WRONLY));
      place.agent = nullptr;
    }
    KJ_IF_MAYBE (dir, ownFreezer_) fds.push_back(mustOpen(*dir, "tasks", O_WRONLY));
    ownFreezer_ = nullptr;
    return fds;
  }

  int freeze() override { return setFreezer("FROZEN"); }
  int thaw() override { return setFreezer("THAWED"); }
  bool frozen() override {
    KJ_IF_MAYBE (dir, freezer()) {
      KJ_IF_MAYBE (text, dir->read("freezer.state")) return text->compare(0, 6, "FROZEN") == 0;
    }
    return false;
  }

  kj::OneOf<kj::Own<HelperGroup>, LimitNotApplied> createHelper(HelperPlace place) override {
    auto helper = kj::heap<V1Helper>(state_, place);
    KJ_ON_SCOPE_FAILURE(helper->remove());
    KJ_IF_MAYBE (bad, helper->build()) {
      helper->remove();
      return *bad;
    }
    return kj::Own<HelperGroup>(kj::mv(helper));
  }

  // True when the directory that must be new was there: not ours to remove.
  bool collided() const { return collided_; }

 private:
  // By its path: no descriptor of agent is kept.
  LimitFact readAgentLimit(const char* controller, const char* file) {
    auto agent = openBelow(state_->of(controller).hierarchy->mount, path() + "/agent");
    KJ_IF_MAYBE (dir, agent) return readLimit(*dir, "agent", file);
    return {"agent", file, "", "its cgroup is gone"};
  }

  // NAME is one directory of the freezer, the whole sandbox in it. Where it can't
  // be made there is none, and a snapshot is refused.
  void makeFreezer() {
    for (auto& place : state_->places) {
      if (place.hierarchy->info.has("freezer")) state_->freezer = place.hierarchy;
    }
    if (state_->freezer != nullptr) return;
    for (auto& h : tree().all) {
      if (h.info.v2 || !h.info.has("freezer") || !h.info.writable) continue;
      auto parent = tree().instanceDir(h);
      KJ_IF_MAYBE (instance, parent) {
        int error = 0;
        ownFreezer_ = instance->makeNewChild(name(), error);
        KJ_IF_MAYBE (dir, ownFreezer_) {
          madeDirectory(*dir);
          state_->freezer = &h;
        }
      }
    }
  }

  kj::Maybe<CgroupDir> freezer() const {
    if (state_->freezer == nullptr) return nullptr;
    return openBelow(state_->freezer->mount, path());
  }

  int setFreezer(const char* state) {
    KJ_IF_MAYBE (dir, freezer()) return dir->write("freezer.state", state);
    return ENOTSUP;
  }

  kj::Maybe<LimitNotApplied> makePlace(const MountedHierarchy& h) {
    auto parent = tree().instanceDir(h);
    KJ_IF_MAYBE (instance, parent) {
      int error = 0;
      auto made = instance->makeNewChild(name(), error);
      KJ_IF_MAYBE (top, made) {
        inheritCpuset(h.info, *instance, *top);
        CgroupDir agent = top->makeChild("agent"), work = top->makeChild("work");
        inheritCpuset(h.info, *top, agent);
        inheritCpuset(h.info, *top, work);
        for (auto* dir : {&*top, &agent, &work}) madeDirectory(*dir);
        state_->places.push_back({&h, kj::mv(work), kj::mv(agent)});
        return nullptr;
      }
      collided_ = error == EEXIST && state_->places.empty();
      return LimitNotApplied{"mkdir", error};
    }
    return LimitNotApplied{"mkdir", ENOENT};
  }

  std::shared_ptr<V1Sandbox> state_;
  // Until its descriptor has been handed out, and where the freezer is not among
  // the hierarchies of state_->places.
  kj::Maybe<CgroupDir> ownFreezer_;
  CounterSet counters_;
  bool collided_ = false;
};

class V1Tree final : public TreeBase {
 public:
  using TreeBase::TreeBase;

  kj::OneOf<kj::Own<SandboxCgroups>, LimitNotApplied> create(const std::string& name,
                                                             const ResolvedLimits& limits,
                                                             uint32_t) override {
    auto sandbox = kj::heap<V1SandboxCgroups>(tree_, name);
    KJ_ON_SCOPE_FAILURE(sandbox->removeWhatCan());
    KJ_IF_MAYBE (bad, sandbox->build(limits)) {
      if (!sandbox->collided()) sandbox->removeWhatCan();
      return *bad;
    }
    return kj::Own<SandboxCgroups>(kj::mv(sandbox));
  }
};

// A parent that does not account hierarchically would let its children out of
// its limit (kernels before 5.11; always on since).
bool hierarchical(const CgroupDir& dir) {
  KJ_IF_MAYBE (text, dir.read("memory.use_hierarchy")) {
    if (text->compare(0, 1, "1") == 0) return true;
    return dir.write("memory.use_hierarchy", "1") == 0;
  }
  return true;
}

}  // namespace

kj::Maybe<kj::Own<CgroupTree>> openV1(std::shared_ptr<TreeData> tree) {
  std::string used;
  for (const char* controller : kControllers) {
    const MountedHierarchy* found = nullptr;
    for (auto& h : tree->all) {
      if (!h.info.v2 && h.info.has(controller)) found = &h;
    }
    if (found == nullptr || !found->info.writable) {
      tree->whyNone = std::string("the cgroup v1 hierarchy of ") + controller +
                      (found == nullptr ? " is not mounted" : " is mounted read-only") +
                      "; mount it, or boot with cgroup v2";
      return nullptr;
    }
    // BASE/INSTANCE, level by level: a cpuset has to be filled in on the way.
    auto error = kj::runCatchingExceptions([&] {
      retryWhileRemoved([&] {
        CgroupDir base = makeBelow(found->mount, tree->base);
        inheritCpuset(found->info, found->mount, base);
        KJ_REQUIRE(!found->info.has("memory") || hierarchical(base),
                   "memory.use_hierarchy can't be switched on");
        CgroupDir instance = base.makeChild(tree->instance);
        inheritCpuset(found->info, base, instance);
        limitAllProcesses(instance);
      });
      if (found->info.has("pids")) {
        addHostCounters(tree->host, found->mount, tree->instancePath());
      }
    });
    KJ_IF_MAYBE (e, error) {
      tree->whyNone = "cannot make " + tree->instancePath() + " for " + controller + ": " +
                      e->getDescription().cStr();
      return nullptr;
    }
    used += (used.empty() ? "" : ", ") + std::string(controller);
  }
  // Wanted by snapshots alone.
  for (auto& h : tree->all) {
    if (h.info.v2 || !h.info.has("freezer") || !h.info.writable) continue;
    auto error = kj::runCatchingExceptions([&] {
      retryWhileRemoved([&] { makeBelow(h.mount, tree->base).makeChild(tree->instance); });
    });
    if (error == nullptr) used += ", freezer";
  }
  tree->mode = CgroupMode::kV1;
  tree->description = "cgroup v1 (" + used + ")";
  return kj::Own<CgroupTree>(kj::heap<V1Tree>(tree));
}

}  // namespace cordon::broker
