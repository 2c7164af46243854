// Pure v2. Processes live in leaves only; an exec is born in its leaf by
// CLONE_INTO_CGROUP from the agent, which the kernel allows because cgroup.procs
// of NAME and of the leaf are the agent's to write.
//
// Where BASE is, first that fits:
//   1. this process is in the root cgroup: below the root;
//   2. a cgroup above us is delegated (systemd's mark, trusted.delegate or
//      user.delegate) and holds no process itself: below that;
//   3. below the root.
// No process is moved for it.
#include <errno.h>
#include <fcntl.h>
#include <kj/debug.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "broker/cgroups_sweep.h"
#include "broker/cgroups_tree.h"

namespace cordon::broker {

namespace {

// A cgroup namespace rooted at `dir`: a child is born in it, opens its own
// namespace file into our descriptor table, and is gone. It shares only the
// table, calls nothing but the kernel, and must be gone before controllers are
// enabled in `dir` (a cgroup with processes can't have any below).
kj::AutoCloseFd namespaceRootedAt(const CgroupDir& dir) {
  int slot, pidfd = -1;
  KJ_SYSCALL(slot = open("/dev/null", O_RDONLY | O_CLOEXEC));
  kj::AutoCloseFd fd(slot);
  clone_args args{};
  args.flags = CLONE_INTO_CGROUP | CLONE_NEWCGROUP | CLONE_FILES | CLONE_VFORK | CLONE_PIDFD;
  args.pidfd = reinterpret_cast<uint64_t>(&pidfd);
  args.cgroup = static_cast<uint64_t>(dir.fd());
  long pid = syscall(SYS_clone3, &args, sizeof(args));
  if (pid == 0) {
    long ns = syscall(SYS_openat, AT_FDCWD, "/proc/self/ns/cgroup", O_RDONLY | O_CLOEXEC);
    bool ok = ns >= 0 && syscall(SYS_dup3, ns, slot, O_CLOEXEC) >= 0;
    if (ns >= 0) syscall(SYS_close, ns);
    syscall(SYS_exit_group, ok ? 0 : 1);
    __builtin_unreachable();
  }
  if (pid < 0) {
    int error = errno;
    KJ_FAIL_SYSCALL("clone3(CLONE_INTO_CGROUP)", error, dir.label());
  }
  kj::AutoCloseFd owned(pidfd);
  siginfo_t info{};
  KJ_SYSCALL(
      waitid(static_cast<idtype_t>(P_PIDFD), static_cast<id_t>(pidfd), &info, WEXITED | __WALL));
  KJ_REQUIRE(info.si_code == CLD_EXITED && info.si_status == 0,
             "the helper could not open its cgroup namespace");
  return fd;
}

// The leaf as the agent gets it: a mount of its own, so that ".." stays in it,
// and read-only, so that nothing in it can be written.
kj::AutoCloseFd detachedMount(const CgroupDir& dir) {
  int fd;
  KJ_SYSCALL(fd = open_tree(dir.fd(), "", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH),
             dir.label());
  kj::AutoCloseFd owned(fd);
  mount_attr attributes{};
  attributes.attr_set =
      MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC;
  KJ_SYSCALL(mount_setattr(fd, "", AT_EMPTY_PATH, &attributes, sizeof(attributes)), dir.label());
  return owned;
}

int giveProcs(const CgroupDir& dir, uint32_t uid) {
  return fchownat(dir.fd(), "cgroup.procs", uid, static_cast<gid_t>(-1), AT_SYMLINK_NOFOLLOW) < 0
             ? errno
             : 0;
}

bool contains(const std::string& words, const std::string& word) {
  std::string all = " " + words + " ";
  for (char& c : all) {
    if (c == '\n') c = ' ';
  }
  return all.find(" " + word + " ") != std::string::npos;
}

// Controllers for the children of `dir`; those that are on stay untouched.
int enable(const CgroupDir& dir, const std::vector<std::string>& controllers) {
  for (auto& controller : controllers) {
    KJ_IF_MAYBE (on, dir.read("cgroup.subtree_control")) {
      if (contains(*on, controller)) continue;
    }
    if (int error = dir.write("cgroup.subtree_control", "+" + controller)) return error;
  }
  return 0;
}

bool isDelegated(const CgroupDir& dir) {
  char value[4];
  for (const char* name : {"trusted.delegate", "user.delegate"}) {
    if (fgetxattr(dir.fd(), name, value, sizeof(value)) == 1 && value[0] == '1') return true;
  }
  return false;
}

// "" or the delegated cgroup above us, as a path below the mount.
std::string delegatedAncestor(const MountedHierarchy& h) {
  std::string path = h.info.ownPath;
  if (h.info.mountRoot != "/" && path.compare(0, h.info.mountRoot.size(), h.info.mountRoot) == 0) {
    path = path.substr(h.info.mountRoot.size());
  }
  for (; path.size() > 1 && isCgroupPath(path); path.resize(path.rfind('/'))) {
    auto found = openBelow(h.mount, path);
    KJ_IF_MAYBE (dir, found) {
      if (isDelegated(*dir) && dir->processes().empty()) return path;
    }
  }
  return "";
}

void addCounters(CounterSet& set, const CgroupDir& dir, rpc::Scope scope) {
  set.add(dir, "memory.events", "oom_kill", rpc::CounterKind::OOM_KILLS, scope);
  set.add(dir, "memory.events", "max", rpc::CounterKind::MEMORY_LIMIT_HITS, scope);
  set.add(dir, "memory.peak", "", rpc::CounterKind::MEMORY_PEAK_BYTES, scope);
  set.add(dir, "memory.current", "", rpc::CounterKind::MEMORY_USED_BYTES, scope);
  set.add(dir, "pids.events", "max", rpc::CounterKind::PIDS_REFUSED, scope);
  set.add(dir, "pids.current", "", rpc::CounterKind::PIDS_NOW, scope);
  set.add(dir, "cpu.stat", "usage_usec", rpc::CounterKind::CPU_USAGE_US, scope);
  set.add(dir, "cpu.stat", "user_usec", rpc::CounterKind::CPU_USER_US, scope);
  set.add(dir, "cpu.stat", "system_usec", rpc::CounterKind::CPU_SYSTEM_US, scope);
  set.add(dir, "cpu.stat", "nr_throttled", rpc::CounterKind::CPU_THROTTLED, scope);
  set.add(dir, "cpu.stat", "throttled_usec", rpc::CounterKind::CPU_THROTTLED_US, scope);
}

struct V2Sandbox {
  V2Options options;
  kj::Maybe<CgroupDir> work;
  uint32_t agentUid = 0;
  uint32_t pids = 0;
  uint64_t memoryBytes = 0;
};

class V2Leaf final : public ExecLeaf {
 public:
  V2Leaf(std::shared_ptr<const V2Sandbox> sandbox, uint32_t number)
      : sandbox_(std::move(sandbox)), name_("exec-" + std::to_string(number)), dir_(make()) {
    KJ_ON_SCOPE_FAILURE(remove());
    if (sandbox_->options.limits) {
      // The leaf's own limit is met before work's: the refusal is counted here.
      KJ_IF_MAYBE (bad, applyLimit(dir_, "pids.max", sandbox_->pids)) {
        KJ_FAIL_SYSCALL("write", bad->error, name_, bad->file);
      }
    }
    if (int error = giveProcs(dir_, sandbox_->agentUid)) {
      KJ_FAIL_SYSCALL("chown", error, dir_.label());
    }
    mount_ = detachedMount(dir_);
    addCounters(counters_, dir_, rpc::Scope::EXEC);
  }

  std::vector<int> agentFds() const override { return {mount_.get()}; }
  Counters read() override { return counters_.read(); }
  uint64_t cpuUsageUs() override { return counters_.value(rpc::CounterKind::CPU_USAGE_US); }

  bool populated() override {
    KJ_IF_MAYBE (events, dir_.read("cgroup.events")) {
      KJ_IF_MAYBE (value, parseCounter(*events, "populated")) return *value != 0;
    }
    return false;
  }

  bool killPass() override {
    if (!populated()) return true;
    if (dir_.write("cgroup.kill", "1") == 0) return false;
    // Kernels before 5.14.
    if (dir_.has("pids.max")) (void)dir_.write("pids.max", "0");
    return killListed([this] { return dir_.processes(); });
  }

  void renew() override {
    if (sandbox_->options.limits) (void)applyLimit(dir_, "pids.max", sandbox_->pids);
  }

  bool remove() override {
    KJ_IF_MAYBE (work, sandbox_->work) return work->removeChild(name_) == 0;
    return true;
  }

 private:
  CgroupDir make() {
    KJ_IF_MAYBE (work, sandbox_->work) {
      int error = 0;
      auto made = work->makeNewChild(name_, error);
      KJ_IF_MAYBE (dir, made) return kj::mv(*dir);
      KJ_FAIL_SYSCALL("mkdir", error, work->label(), name_);
    }
    KJ_FAIL_ASSERT("no work directory");
  }

  std::shared_ptr<const V2Sandbox> sandbox_;
  std::string name_;
  CgroupDir dir_;
  kj::AutoCloseFd mount_;
  CounterSet counters_;
};

class V2Helper final : public HelperGroup {
 public:
  V2Helper(CgroupDir parent, CgroupDir dir) : parent_(kj::mv(parent)), dir_(kj::mv(dir)) {}

  const CgroupDir& dir() const { return dir_; }
  std::vector<kj::AutoCloseFd> initFds() override {
    std::vector<kj::AutoCloseFd> fds;
    int copy;
    KJ_SYSCALL(copy = fcntl(dir_.fd(), F_DUPFD_CLOEXEC, 3));
    fds.emplace_back(copy);
    return fds;
  }
  bool killPass() override {
    (void)dir_.write("cgroup.kill", "1");
    return killListed([this] { return dir_.processes(); });
  }
  bool remove() override { return parent_.removeChild(kHelperName) == 0; }

 private:
  CgroupDir parent_;
  CgroupDir dir_;
};

class V2SandboxCgroups final : public SandboxBase {
 public:
  V2SandboxCgroups(std::shared_ptr<const TreeData> data, std::string name)
      : SandboxBase(std::move(data), std::move(name)), state_(std::make_shared<V2Sandbox>()) {}

  kj::Maybe<LimitNotApplied> build(const MountedHierarchy& h, const ResolvedLimits& limits,
                                   uint32_t agentUid, const V2Options& options) {
    hierarchy_ = &h;
    state_->options = options;
    state_->agentUid = agentUid;
    state_->pids = limits.pids;
    state_->memoryBytes = limits.memoryBytes;
    int error = ENOENT;
    auto instance = tree().instanceDir(h);
    kj::Maybe<CgroupDir> made;
    KJ_IF_MAYBE (dir, instance) {
      auto top = dir->makeNewChild(name(), error);
      made = kj::mv(top);
    }
    KJ_IF_MAYBE (top, made) return fill(*top, limits);
    collided_ = error == EEXIST;
    return LimitNotApplied{"mkdir", error};
  }

  bool memoryTight() override {
    KJ_IF_MAYBE (work, state_->work) {
      return isMemoryTight(*work, "memory.current", {"inactive_file", "active_file"},
                           state_->memoryBytes);
    }
    return false;
  }

  kj::Own<ExecLeaf> createExec(uint32_t number) override {
    return kj::heap<V2Leaf>(state_, number);
  }

  Counters read() override {
    Counters counters = counters_.read();
    for (auto& counter : tree().host.read()) counters.push_back(counter);
    return counters;
  }

  std::vector<LimitFact> readLimits() override {
    std::vector<LimitFact> facts;
    KJ_IF_MAYBE (work, state_->work) {
      for (const char* file : {"memory.max", "memory.swap.max", "pids.max", "cpu.max"}) {
        facts.push_back(readLimit(*work, "work", file));
      }
    }
    KJ_IF_MAYBE (agent, agentDir_) {
      for (const char* file : {"memory.max", "memory.swap.max", "pids.max", "cpu.weight"}) {
        facts.push_back(readLimit(*agent, "agent", file));
      }
    }
    return facts;
  }

  std::vector<kj::AutoCloseFd> initFds() override {
    std::vector<kj::AutoCloseFd> fds;
    int copy;
    KJ_SYSCALL(copy = fcntl(KJ_ASSERT_NONNULL(agentDir_).fd(), F_DUPFD_CLOEXEC, 3));
    fds.emplace_back(copy);
    return fds;
  }
  int namespaceFd() const override { return namespace_.get(); }

  int freeze() override { return setFreezer("1"); }
  int thaw() override { return setFreezer("0"); }
  bool frozen() override {
    KJ_IF_MAYBE (work, state_->work) {
      KJ_IF_MAYBE (events, work->read("cgroup.events")) {
        KJ_IF_MAYBE (value, parseCounter(*events, "frozen")) return *value != 0;
      }
    }
    return false;
  }

  kj::OneOf<kj::Own<HelperGroup>, LimitNotApplied> createHelper(HelperPlace place) override {
    bool beside = place == HelperPlace::kBeside;
    int error = ENOENT;
    auto parent = hierarchy_ == nullptr
                      ? kj::Maybe<CgroupDir>()
                      : openBelow(hierarchy_->mount, path() + (beside ? "" : "/work"));
    KJ_IF_MAYBE (above, parent) {
      auto made = above->makeNewChild(kHelperName, error);
      KJ_IF_MAYBE (dir, made) {
        auto helper = kj::heap<V2Helper>(kj::mv(*above), kj::mv(*dir));
        if (!beside || !state_->options.limits) return kj::Own<HelperGroup>(kj::mv(helper));
        KJ_IF_MAYBE (bad, limit(helper->dir(), kHelperMemoryBytes, kHelperPids)) {
          (void)helper->remove();
          return *bad;
        }
        return kj::Own<HelperGroup>(kj::mv(helper));
      }
    }
    return LimitNotApplied{"mkdir", error};
  }

  bool collided() const { return collided_; }

 private:
  int setFreezer(const char* state) {
    KJ_IF_MAYBE (work, state_->work) return work->write("cgroup.freeze", state);
    return ENOTSUP;
  }

  kj::Maybe<LimitNotApplied> fill(const CgroupDir& top, const ResolvedLimits& limits) {
    // Before any controller: afterwards nobody can be born in NAME.
    namespace_ = namespaceRootedAt(top);
    CgroupDir agent = top.makeChild("agent"), work = top.makeChild("work");
    for (auto* dir :
         {&top, static_cast<const CgroupDir*>(&agent), static_cast<const CgroupDir*>(&work)}) {
      madeDirectory(*dir);
    }
    for (auto* dir : {&top, static_cast<const CgroupDir*>(&work)}) {
      if (int error = enable(*dir, state_->options.controllers)) {
        return LimitNotApplied{"cgroup.subtree_control", error};
      }
    }
    if (state_->options.limits) {
      KJ_IF_MAYBE (bad, limit(work, limits.memoryBytes, limits.pids)) return *bad;
      KJ_IF_MAYBE (bad, applyText(work, "cpu.max",
                                  std::to_string(limits.cpuMillis * kCpuPeriodUs / 1000) + " " +
                                      std::to_string(kCpuPeriodUs))) {
        return *bad;
      }
      KJ_IF_MAYBE (bad, limit(agent, kAgentMemoryBytes, kAgentPids)) return *bad;
      KJ_IF_MAYBE (bad, applyLimit(agent, "cpu.weight", 200)) return *bad;
    }
    if (int error = giveProcs(top, state_->agentUid)) return LimitNotApplied{"chown", error};
    addCounters(counters_, work, rpc::Scope::SANDBOX);
    agentDir_ = kj::mv(agent);
    state_->work = kj::mv(work);
    return nullptr;
  }

  static kj::Maybe<LimitNotApplied> limit(const CgroupDir& dir, uint64_t memory, uint64_t pids) {
    KJ_IF_MAYBE (bad, applyLimit(dir, "memory.max", memory, ReadBack::kPages)) return *bad;
    // Missing on kernels without swap accounting, where swap is then not limited
    // at all: only a host without swap is right there.
    KJ_IF_MAYBE (bad, applyLimit(dir, "memory.swap.max", 0)) {
      if (bad->error != ENOENT || hasSwap()) return *bad;
    }
    return applyLimit(dir, "pids.max", pids);
  }

  static bool hasSwap() { return access("/proc/swaps", R_OK) == 0 && swapLines() > 1; }
  static int swapLines() {
    int lines = 0;
    kj::AutoCloseFd fd(open("/proc/swaps", O_RDONLY | O_CLOEXEC));
    char buffer[4096];
    ssize_t n = fd.get() < 0 ? 0 : ::read(fd.get(), buffer, sizeof(buffer));
    for (ssize_t i = 0; i < n; ++i) lines += buffer[i] == '\n';
    return lines;
  }

  std::shared_ptr<V2Sandbox> state_;
  const MountedHierarchy* hierarchy_ = nullptr;  // in tree()
  kj::AutoCloseFd namespace_;
  kj::Maybe<CgroupDir> agentDir_;
  CounterSet counters_;
  bool collided_ = false;
};

class V2Tree final : public TreeBase {
 public:
  V2Tree(std::shared_ptr<TreeData> tree, const MountedHierarchy* hierarchy, V2Options options)
      : TreeBase(std::move(tree)), hierarchy_(hierarchy), options_(std::move(options)) {}

  kj::OneOf<kj::Own<SandboxCgroups>, LimitNotApplied> create(const std::string& name,
                                                             const ResolvedLimits& limits,
                                                             uint32_t agentHostUid) override {
    auto sandbox = kj::heap<V2SandboxCgroups>(tree_, name);
    KJ_ON_SCOPE_FAILURE(sandbox->removeWhatCan());
    KJ_IF_MAYBE (bad, sandbox->build(*hierarchy_, limits, agentHostUid, options_)) {
      if (!sandbox->collided()) sandbox->removeWhatCan();
      return *bad;
    }
    return kj::Own<SandboxCgroups>(kj::mv(sandbox));
  }

 private:
  const MountedHierarchy* hierarchy_;  // in tree_
  V2Options options_;
};

// BASE/INSTANCE with the controllers on for what comes below. "" = done.
std::string prepare(TreeData& tree, const MountedHierarchy& h, const V2Options& options) {
  std::string parent = h.info.ownPath == "/" ? "" : delegatedAncestor(h);
  kj::Maybe<CgroupDir> delegated;
  if (!parent.empty()) delegated = openBelow(h.mount, parent);
  const CgroupDir* above = &h.mount;
  KJ_IF_MAYBE (dir, delegated) {
    above = dir;
    tree.base = parent + tree.base;
  }
  KJ_IF_MAYBE (available, above->read("cgroup.controllers")) {
    for (auto& controller : options.controllers) {
      if (!contains(*available, controller)) {
        return "cgroup v2 has no " + controller + " controller here (cgroup.controllers of " +
               above->label() + "/); boot without cgroup v1 or delegate it";
      }
    }
  }
  if (int error = enable(*above, options.controllers)) {
    return "cannot enable cgroup controllers below " + above->label() + "/ (errno " +
           std::to_string(error) + "); start cordon in a child of a delegated cgroup";
  }
  retryWhileRemoved([&] {
    CgroupDir base = makeBelow(h.mount, tree.base);
    CgroupDir instance = base.makeChild(tree.instance);
    for (auto* dir : {&base, &instance}) {
      if (int error = enable(*dir, options.controllers)) {
        KJ_FAIL_SYSCALL("enable controllers", error, dir->label());
      }
    }
    limitAllProcesses(instance);
  });
  return "";
}

}  // namespace

kj::Maybe<kj::Own<CgroupTree>> openV2(std::shared_ptr<TreeData> tree, const V2Options& options) {
  const MountedHierarchy* found = nullptr;
  for (auto& h : tree->all) {
    if (h.info.v2) found = &h;
  }
  if (found == nullptr || !found->info.writable) {
    tree->whyNone = found == nullptr ? "no cgroup file system is mounted; mount cgroup2"
                                     : "cgroup2 is mounted read-only";
    return nullptr;
  }
  auto error = kj::runCatchingExceptions([&] { tree->whyNone = prepare(*tree, *found, options); });
  KJ_IF_MAYBE (e, error) {
    tree->whyNone = "cannot make " + tree->instancePath() + ": " + e->getDescription().cStr();
  }
  if (!tree->whyNone.empty()) return nullptr;
  addHostCounters(tree->host, found->mount, tree->instancePath());
  tree->mode = CgroupMode::kV2;
  tree->description = "cgroup v2 at " + tree->base;
  return kj::Own<CgroupTree>(kj::heap<V2Tree>(tree, found, options));
}

}  // namespace cordon::broker
