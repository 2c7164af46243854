#include "runtimes/jail/jail_spec.h"

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <kj/debug.h>

#include <algorithm>
#include <vector>

#include "ipc/agent_ids.h"
#include "jailer/report.h"
#include "runtimes/kernel_paths.h"
#include "runtimes/sealed_file.h"

namespace cordon::runtimes {

namespace {

using jailer::MountKind;

struct Planned {
  MountKind kind;
  std::string where;
  std::vector<std::pair<std::string, std::string>> options = {};
  bool readOnly = false, noExec = false, make = false, optional = false;
  std::string target = "";
};

std::string number(uint64_t value) {
  return std::to_string(value);
}

class Plan {
 public:
  Plan(const CreateRequest& request, unsigned cpus) : request_(request) {
    // First: snapshots are taken of the root with these masks and nothing else in it.
    for (const std::string& path : request.image->closed) {
      add({.kind = MountKind::MASK, .where = path, .optional = true});
    }
    addKernel();
    addDevices();
    addScratch();
    for (const std::string& path : readOnlyPaths()) {
      add({.kind = MountKind::AGAIN,
           .where = path.substr(1),
           .readOnly = true,
           .noExec = true,
           .optional = true});
    }
    for (const std::string& path : maskedPaths(cpus)) {
      add({.kind = MountKind::MASK, .where = path.substr(1), .optional = true});
    }
  }

  const std::vector<Planned>& mounts() const { return mounts_; }

 private:
  void add(Planned mount) { mounts_.push_back(std::move(mount)); }

  // Options of a mount are in the host's ids: it is the host's root that mounts.
  std::string hostId(uint32_t inside) const { return number(request_.ids.first + inside); }

  void addKernel() {
    // Of another uid's processes, the agent's above all, a program sees nothing.
    // The agent sees everybody's, by its group, which no program has.
    add({.kind = MountKind::PROC,
         .where = "proc",
         .options = {{"hidepid", "invisible"}, {"gid", hostId(ipc::kAgentGid)}},
         .noExec = true});
    add({.kind = MountKind::SYSFS, .where = "sys", .readOnly = true, .noExec = true});
  }

  void addDevices() {
    add({.kind = MountKind::TMPFS,
         .where = "dev",
         .options = {{"mode", "755"},
                     {"size", "65536"},
                     {"nr_inodes", "64"},
                     {"uid", hostId(0)},
                     {"gid", hostId(0)}},
         .readOnly = true,
         .noExec = true});
    for (const char* name : jailer::kDevices) {
      add({.kind = MountKind::DEVICE, .where = std::string("dev/") + name});
    }
    add({.kind = MountKind::DEVPTS,
         .where = "dev/pts",
         .options = {{"newinstance", ""},
                     {"ptmxmode", "0666"},
                     {"mode", "0620"},
                     {"max", "64"},
                     {"gid", hostId(kTty)}},
         .noExec = true,
         .make = true});
    const std::pair<const char*, const char*> kLinks[] = {{"dev/fd", "/proc/self/fd"},
                                                          {"dev/stdin", "/proc/self/fd/0"},
                                                          {"dev/stdout", "/proc/self/fd/1"},
                                                          {"dev/stderr", "/proc/self/fd/2"},
                                                          {"dev/ptmx", "pts/ptmx"}};
    for (auto& [where, target] : kLinks) {
      add({.kind = MountKind::LINK, .where = where, .target = target});
    }
  }

  void addScratch() {
    auto& limits = request_.limits;
    auto scratch = [&](const char* where, uint64_t bytes, uint32_t uid, uint32_t gid, bool noExec,
                       bool make) {
      add({.kind = MountKind::TMPFS,
           .where = where,
           .options = {{"mode", "1777"},
                       {"size", number(bytes)},
                       {"nr_inodes", number(scratchInodes(bytes))},
                       {"uid", hostId(uid)},
                       {"gid", hostId(gid)}},
           .noExec = noExec,
           .make = make});
    };
    scratch("dev/shm", limits.shmBytes, 0, 0, true, true);
    scratch("tmp", limits.tmpBytes, 0, 0, false, false);
    scratch("work", limits.diskBytes, request_.image->defaultUid, request_.image->defaultGid, false,
            false);
  }

  static constexpr uint32_t kTty = 5;

  const CreateRequest& request_;
  std::vector<Planned> mounts_;
};

// As jailer/mounts.cc does it.
void describe(MountPlan& out, const Planned& mount) {
  auto add = [&](std::string what, bool readOnly, bool noDev, bool noExec) {
    out.push_back({std::move(what), "/" + mount.where, planFlags(readOnly, true, noDev, noExec)});
  };
  switch (mount.kind) {
    case MountKind::PROC:
      return add("proc", mount.readOnly, true, mount.noExec);
    case MountKind::SYSFS:
      return add("sysfs", mount.readOnly, true, mount.noExec);
    case MountKind::TMPFS:
      return add("tmpfs", mount.readOnly, true, mount.noExec);
    case MountKind::DEVPTS:
      return add("devpts", mount.readOnly, true, mount.noExec);
    case MountKind::DEVICE:
      return add("the host's /" + mount.where, true, false, true);
    case MountKind::AGAIN:
      if (lookUp("/" + mount.where) == KernelPath::kAbsent) return;
      return add("the same again", mount.readOnly, true, mount.noExec);
    case MountKind::MASK:
      switch (lookUp("/" + mount.where)) {
        case KernelPath::kAbsent:
          return;
        case KernelPath::kFile:
          return add("the host's /dev/null, over a file", true, false, true);
        case KernelPath::kDirectory:
          return add("an empty tmpfs, over a directory", true, true, true);
      }
      return;
    case MountKind::LINK:
      return;
  }
}

void write(jailer::Mount::Builder out, const Planned& mount) {
  out.setKind(mount.kind);
  out.setWhere(mount.where);
  auto options = out.initOptions(static_cast<uint>(mount.options.size()));
  for (uint i = 0; i < options.size(); ++i) {
    options[i].setKey(mount.options[i].first);
    options[i].setValue(mount.options[i].second);
  }
  out.setReadOnly(mount.readOnly);
  out.setNoExec(mount.noExec);
  out.setMake(mount.make);
  out.setOptional(mount.optional);
  out.setTarget(mount.target);
}

void writeImage(jailer::JailSpec::Builder spec, const CreateRequest& request) {
  bool writable = request.limits.rootBytes != 0;
  auto& mounts = request.image->mounts;
  auto out = spec.initImage(static_cast<uint>(mounts.size()));
  for (uint i = 0; i < out.size(); ++i) {
    out[i].setWhere(mounts[i].where);
    out[i].setDirectory(mounts[i].directory);
    // The skeleton is a tmpfs, which can't show owners before 6.3: its root is
    // then the upper layer's all the same.
    auto own = writable && i > 0 ? jailer::Owners::MUST_BE_OWN : jailer::Owners::OWN;
    out[i].setOwners(mounts[i].own ? own : jailer::Owners::HOST);
  }
  spec.setRootBytes(request.limits.rootBytes);
  spec.setRootInodes(writable ? scratchInodes(request.limits.rootBytes) : 0);
}

kj::AutoCloseFd sealed(capnp::MessageBuilder& message) {
  auto words = capnp::messageToFlatArray(message);
  auto bytes = words.asBytes();
  KJ_REQUIRE(bytes.size() <= jailer::MAX_SPEC_BYTES, "the spec is too long", bytes.size());
  return sealedFile("jail-spec", bytes, 0600);
}

jailer::CgroupEntry entryOf(const broker::SandboxCgroups& cgroups) {
  return cgroups.mode() == broker::CgroupMode::kV2 ? jailer::CgroupEntry::BORN_INSIDE
                                                   : jailer::CgroupEntry::JOIN_TASKS;
}

}  // namespace

void fillJailSpec(jailer::JailSpec::Builder spec, const CreateRequest& request, unsigned cpus,
                  uint32_t cgroupFds) {
  spec.setVersion(jailer::SPEC_VERSION);
  spec.setHostname(request.hostname);
  spec.setIdFirst(request.ids.first);
  spec.setIdCount(request.ids.count);
  spec.setAgentUid(ipc::kAgentUid);
  spec.setAgentGid(ipc::kAgentGid);
  spec.setFiles(agentFiles(request.limits.files));
  spec.setCgroups(entryOf(*request.cgroups));
  spec.setCgroupFds(cgroupFds);
  spec.setLayersWritable(request.willRestore);
  spec.setCoreScheduling(request.ownCore);
  writeImage(spec, request);
  Plan plan(request, cpus);
  auto mounts = spec.initMounts(static_cast<uint>(plan.mounts().size()));
  for (uint i = 0; i < mounts.size(); ++i) write(mounts[i], plan.mounts()[i]);
}

MountPlan jailMountPlan(const CreateRequest& request, unsigned cpus) {
  MountPlan result = imagePlan(*request.image, request.limits.rootBytes != 0);
  Plan plan(request, cpus);
  for (auto& mount : plan.mounts()) describe(result, mount);
  return result;
}

kj::AutoCloseFd sealedCopierSpec(const CopyRequest& request, uint32_t cgroupFds) {
  constexpr uint32_t kCopierId = 65001;  // nobody's inside
  constexpr uint64_t kFiles = 1024;
  bool saves = request.job.task == copier::Task::kSave;
  capnp::MallocMessageBuilder message;
  auto spec = message.initRoot<jailer::JailSpec>();
  spec.setVersion(jailer::SPEC_VERSION);
  spec.setHostname("copier");
  spec.setIdFirst(request.ids.first);
  spec.setIdCount(request.ids.count);
  spec.setAgentUid(kCopierId);
  spec.setAgentGid(kCopierId);
  spec.setFiles(kFiles);
  spec.setCgroups(entryOf(*request.cgroups));
  spec.setCgroupFds(cgroupFds);
  spec.initImage(1)[0].setDirectory(true);
  spec.setProgram(saves ? jailer::Program::SAVER : jailer::Program::RESTORER);
  spec.setExtraFds(copier::kEndFd - copier::kJobFd);
  if (saves) spec.setFileBytes(request.job.bounds.archiveBytes);
  return sealed(message);
}

kj::AutoCloseFd sealedSpec(const CreateRequest& request, unsigned cpus, uint32_t cgroupFds) {
  capnp::MallocMessageBuilder message;
  fillJailSpec(message.initRoot<jailer::JailSpec>(), request, cpus, cgroupFds);
  return sealed(message);
}

}  // namespace cordon::runtimes
