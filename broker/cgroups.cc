#include "broker/cgroups.h"

#include <errno.h>
#include <fcntl.h>
#include <kj/debug.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "broker/cgroups_sweep.h"
#include "broker/cgroups_tree.h"
#include "broker/kernel_facts.h"

namespace cordon::broker {

namespace {

std::string deviceOf(const struct stat& st) {
  return std::to_string(major(st.st_dev)) + ":" + std::to_string(minor(st.st_dev));
}

}  // namespace

std::vector<MountedHierarchy> openHierarchies(const std::vector<Hierarchy>& found) {
  std::vector<MountedHierarchy> all;
  for (auto& h : found) {
    int fd = open(h.mountPoint.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) continue;  // covered by another mount, or gone
    kj::AutoCloseFd owned(fd);
    // The path may lead elsewhere by now: believe the file system itself.
    struct statfs fs {};
    struct stat st {};
    KJ_SYSCALL(fstatfs(fd, &fs));
    KJ_SYSCALL(fstat(fd, &st));
    long magic = h.v2 ? CGROUP2_SUPER_MAGIC : CGROUP_SUPER_MAGIC;
    if (fs.f_type != magic || deviceOf(st) != h.device) continue;
    all.push_back({h, CgroupDir(kj::mv(owned), h.label() + ":")});
  }
  return all;
}

void addHostCounters(CounterSet& set, const CgroupDir& mount, const std::string& instancePath) {
  for (std::string path = instancePath; !path.empty(); path.resize(path.rfind('/'))) {
    auto found = openBelow(mount, path);
    KJ_IF_MAYBE (dir, found) {
      // From 6.11 on pids.events of v2 counts what happened below, too, and
      // .local what this cgroup's own limit refused.
      const char* file = dir->has("pids.events.local") ? "pids.events.local" : "pids.events";
      set.add(*dir, file, "max", rpc::CounterKind::PIDS_REFUSED, rpc::Scope::HOST, 1, 1,
              path + "/");
    }
  }
}

LimitFact readLimit(const CgroupDir& dir, const char* group, const char* file) {
  constexpr size_t kLongest = 256;
  LimitFact fact{group, file, "", ""};
  KJ_IF_MAYBE (text, dir.read(file)) {
    while (!text->empty() && text->back() == '\n') text->pop_back();
    if (text->empty() || text->size() > kLongest) {
      fact.missing = "not of a form that is known";
    } else {
      fact.value = plainText(*text);
    }
  } else {
    fact.missing = "this kernel has no such file";
  }
  return fact;
}

bool isMemoryTight(const CgroupDir& work, const char* usageFile,
                   std::initializer_list<const char*> reclaimable, uint64_t limit) {
  // A leaf takes a few hundred KiB with its per-CPU parts.
  constexpr uint64_t kRoom = 2 << 20;
  constexpr uint64_t kEasilyReclaimed = 8 << 20;
  if (limit == 0) return false;
  auto number = [&](const char* file, const char* key) -> uint64_t {
    KJ_IF_MAYBE (text, work.read(file)) return parseCounter(*text, key).orDefault(0);
    return 0;
  };
  if (number(usageFile, "") + kRoom < limit) return false;
  uint64_t cache = 0;
  for (const char* key : reclaimable) cache += number("memory.stat", key);
  return cache < kEasilyReclaimed;
}

SandboxBase::SandboxBase(std::shared_ptr<const TreeData> tree, std::string name, std::string parent)
    : tree_(std::move(tree)),
      name_(std::move(name)),
      parent_(parent.empty() ? tree_->instancePath() : std::move(parent)),
      path_(parent_ + "/" + name_) {
  KJ_REQUIRE(isCgroupName(name_), "not a sandbox's name");
}

kj::Own<ExecLeaf> SandboxBase::createExec(uint32_t) {
  KJ_FAIL_REQUIRE("an adopted sandbox takes no execs");
}

std::vector<pid_t> SandboxBase::listProcesses() const {
  std::set<pid_t> pids;
  for (auto& h : tree_->all) {
    auto found = openBelow(h.mount, path_);
    KJ_IF_MAYBE (top, found) {
      for (auto& dir : subtree(kj::mv(*top))) {
        for (pid_t pid : dir.processes()) pids.insert(pid);
      }
    }
  }
  return {pids.begin(), pids.end()};
}

bool SandboxBase::killPass() {
  for (auto& h : tree_->all) {
    auto found = openBelow(h.mount, path_);
    KJ_IF_MAYBE (dir, found) {
      // Where there is a v2 hierarchy, also an empty one beside v1, the kernel
      // kills the whole subtree at once. Errors show in what is still listed.
      if (dir->has("cgroup.kill")) (void)dir->write("cgroup.kill", "1");
      if (dir->has("pids.max")) (void)dir->write("pids.max", "0");
    }
  }
  bool none = killListed([this] { return listProcesses(); });
  // What a snapshot had frozen gets its signal when it is thawed.
  for (auto& h : tree_->all) {
    auto found = openBelow(h.mount, path_);
    KJ_IF_MAYBE (dir, found) {
      if (dir->has("freezer.state")) (void)dir->write("freezer.state", "THAWED");
    }
  }
  return none;
}

std::vector<LeftOver> SandboxBase::removePass() {
  std::vector<LeftOver> left;
  for (auto& h : tree_->all) {
    auto found = openBelow(h.mount, parent_);
    KJ_IF_MAYBE (instance, found) removeSubtree(*instance, name_, seen_, left);
  }
  return left;
}

void SandboxBase::removeWhatCan() noexcept {
  KJ_IF_MAYBE (exception, kj::runCatchingExceptions([this] { (void)removePass(); })) {
    KJ_LOG(WARNING, "cgroups of a failed create are left for now", path_, *exception);
  }
}

std::vector<std::string> SandboxBase::directories() const {
  return {seen_.begin(), seen_.end()};
}

kj::OneOf<kj::Own<SandboxCgroups>, LimitNotApplied> TreeBase::create(const std::string&,
                                                                     const ResolvedLimits&,
                                                                     uint32_t) {
  return LimitNotApplied{"cgroup", ENOTSUP};
}

kj::Own<SandboxCgroups> TreeBase::adopt(const std::string& name, const std::string& path) {
  size_t slash = path.rfind('/');
  bool usable = isCgroupPath(path) && slash > 0 && path.substr(slash + 1) == name;
  return kj::heap<SandboxBase>(tree_, name, usable ? path.substr(0, slash) : "");
}

std::string TreeBase::pathOf(const std::string& name) const {
  return tree_->mode == CgroupMode::kNone ? "" : tree_->instancePath() + "/" + name;
}

std::vector<std::string> TreeBase::names() {
  std::set<std::string> all;
  for (auto& h : tree_->all) {
    auto found = tree_->instanceDir(h);
    KJ_IF_MAYBE (dir, found) {
      for (auto& name : dir->children()) {
        if (isCgroupName(name)) all.insert(name);
      }
    }
  }
  return {all.begin(), all.end()};
}

bool TreeBase::removeInstance() {
  bool gone = true;
  for (auto& h : tree_->all) {
    auto found = openBelow(h.mount, tree_->base);
    KJ_IF_MAYBE (base, found) {
      if (base->removeChild(tree_->instance) != 0) {
        gone = false;
        continue;
      }
      // BASE is shared by instances: it goes with the last.
      size_t slash = tree_->base.rfind('/');
      std::string parent = tree_->base.substr(0, slash), last = tree_->base.substr(slash + 1);
      if (parent.empty()) {
        (void)h.mount.removeChild(last);
      } else {
        auto above = openBelow(h.mount, parent);
        KJ_IF_MAYBE (dir, above) (void)dir->removeChild(last);
      }
    }
  }
  return gone;
}

void limitAllProcesses(const CgroupDir& instance) {
  if (!instance.has("pids.max")) return;
  uint64_t all = UINT64_MAX;
  for (const char* path : {"/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"}) {
    uint64_t most = 0;
    if (std::ifstream(path) >> most && most > 0) all = std::min(all, most);
  }
  if (all == UINT64_MAX) return;
  KJ_IF_MAYBE (bad, applyLimit(instance, "pids.max", all / 4 * 3)) {
    KJ_FAIL_SYSCALL("write", bad->error, instance.label(), bad->file);
  }
}

kj::Own<CgroupTree> CgroupTree::open(const std::string& base, const std::string& instance) {
  KJ_REQUIRE(isCgroupPath(base), "the cgroup base must be an absolute path of plain names", base);
  KJ_REQUIRE(isCgroupName(instance), "bad instance name", instance);
  auto tree = std::make_shared<TreeData>();
  tree->base = base;
  tree->instance = instance;
  tree->description = "no cgroups";
  if (geteuid() != 0) {
    tree->whyNone = "cgroups need root; run the broker as root";
    return kj::heap<TreeBase>(tree);
  }
  tree->all = openHierarchies(readHierarchies());
  bool v1Memory = std::any_of(tree->all.begin(), tree->all.end(),
                              [](auto& h) { return !h.info.v2 && h.info.has("memory"); });
  auto opened = v1Memory ? openV1(tree) : openV2(tree, V2Options());
  KJ_IF_MAYBE (result, opened) return kj::mv(*result);
  tree->mode = CgroupMode::kNone;
  return kj::heap<TreeBase>(tree);
}

}  // namespace cordon::broker
