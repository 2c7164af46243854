// What the v1 and v2 trees have in common: the hierarchies by descriptor, and
// killing, listing and removing, which go over every hierarchy that is mounted
// (runc makes its agent directory in all of them).
#pragma once
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "broker/cgroups_counters.h"
#include "broker/cgroups_dir.h"
#include "broker/cgroups_discovery.h"

namespace cordon::broker {

// The agent's own cgroup: vm-agent, the runtime's set-up before it, and one
// forked child per starting exec.
// Room for as many starting execs as there may be: a message of 1 MiB each, and
// once more what of it becomes the program's arguments.
constexpr uint64_t kAgentMemoryBytes = 192ull << 20;
constexpr uint64_t kAgentPids = 32 + 64;
constexpr uint64_t kCpuPeriodUs = 100'000;
// A helper's: the jailer, the namespaces' first process, the program.
constexpr uint64_t kHelperMemoryBytes = 96ull << 20;
constexpr uint64_t kHelperPids = 8;
constexpr char kHelperName[] = "copier";

struct MountedHierarchy {
  Hierarchy info;
  CgroupDir mount;
};

struct TreeData {
  std::vector<MountedHierarchy> all;
  CgroupMode mode = CgroupMode::kNone;
  std::string whyNone;
  std::string description;
  std::string base;      // below each mount, e.g. "/cordon"
  std::string instance;  // one component
  CounterSet host;       // pids.events of the cgroups above a sandbox's

  std::string instancePath() const { return base + "/" + instance; }
  kj::Maybe<CgroupDir> instanceDir(const MountedHierarchy& h) const {
    return openBelow(h.mount, instancePath());
  }
};

// pids.events of BASE/INSTANCE and of everything above it, scope `host`.
void addHostCounters(CounterSet& set, const CgroupDir& mount, const std::string& instancePath);

// All sandboxes together get no more than three quarters of the host's processes,
// where `instance` has the pids controller.
void limitAllProcesses(const CgroupDir& instance);

// For SandboxCgroups::readLimits.
LimitFact readLimit(const CgroupDir& dir, const char* group, const char* file);

// As SandboxCgroups::memoryTight, from the files of one version.
bool isMemoryTight(const CgroupDir& work, const char* usageFile,
                   std::initializer_list<const char*> reclaimable, uint64_t limit);

class SandboxBase : public SandboxCgroups {
 public:
  // `parent`: the instance's directory where it isn't this instance's present one.
  SandboxBase(std::shared_ptr<const TreeData> tree, std::string name, std::string parent = "");
  CgroupMode mode() const override { return tree_->mode; }
  const std::string& path() const override { return path_; }
  kj::Own<ExecLeaf> createExec(uint32_t number) override;
  Counters read() override { return {}; }
  bool killPass() override;
  std::vector<LeftOver> removePass() override;
  // The same on the way out of a failure, which is the one to be told: what goes
  // wrong with it (no descriptors) is for adopt() and the next pass.
  void removeWhatCan() noexcept;
  std::vector<std::string> directories() const override;
  int namespaceFd() const override { return -1; }

 protected:
  const TreeData& tree() const { return *tree_; }
  const std::string& name() const { return name_; }
  void madeDirectory(const CgroupDir& dir) { seen_.insert(dir.label()); }

 private:
  std::vector<pid_t> listProcesses() const;

  std::shared_ptr<const TreeData> tree_;
  std::string name_;
  std::string parent_;
  std::string path_;
  std::set<std::string> seen_;
};

// Also the tree of mode kNone: it finds and removes, and refuses to create.
class TreeBase : public CgroupTree {
 public:
  explicit TreeBase(std::shared_ptr<TreeData> tree) : tree_(std::move(tree)) {}
  CgroupMode mode() const override { return tree_->mode; }
  std::string whyNone() const override { return tree_->whyNone; }
  std::string describe() const override { return tree_->description; }
  kj::OneOf<kj::Own<SandboxCgroups>, LimitNotApplied> create(const std::string& name,
                                                             const ResolvedLimits& limits,
                                                             uint32_t agentHostUid) override;
  kj::Own<SandboxCgroups> adopt(const std::string& name, const std::string& path) override;
  std::string pathOf(const std::string& name) const override;
  std::vector<std::string> names() override;
  bool removeInstance() override;

 protected:
  std::shared_ptr<TreeData> tree_;
};

// Both fill in mode, description and host counters of `tree`, make
// BASE/INSTANCE, and return null with a reason in whyNone where that can't be.
kj::Maybe<kj::Own<CgroupTree>> openV1(std::shared_ptr<TreeData> tree);
struct V2Options {
  // What the limits need. Tests of the mechanics on a hierarchy that lacks them
  // pass others or none, and set no limits.
  std::vector<std::string> controllers = {"memory", "pids", "cpu"};
  bool limits = true;
};
kj::Maybe<kj::Own<CgroupTree>> openV2(std::shared_ptr<TreeData> tree, const V2Options& options);

// The mounted hierarchies that are what mountinfo says.
std::vector<MountedHierarchy> openHierarchies(const std::vector<Hierarchy>& found);

}  // namespace cordon::broker
