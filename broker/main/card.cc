#include "broker/main/card.h"

#include <kj/debug.h>

#include <algorithm>

#include "broker/main/creation.h"
#include "broker/main/info.h"

namespace cordon::broker {

namespace {

template <typename Fact>
void writeOrigin(rpc::Origin::Builder out, const char* from, const Fact& fact) {
  out.setSource(rpc::FactSource::KERNEL);
  out.setFrom(from);
  out.setMissing(fact.missing);
}

void writeSet(rpc::CapabilitySet::Builder out, const char* set, uint64_t mask) {
  out.setSet(set);
  out.setMask(mask);
  auto names = capabilityNames(mask);
  auto list = out.initNames(static_cast<uint>(names.size()));
  for (uint i = 0; i < names.size(); ++i) list.set(i, names[i]);
}

void writeStatus(rpc::BoundaryCard::Builder out, const Fact<StatusFacts>& fact) {
  writeOrigin(out.initStatus(), "/proc/PID/status of the init", fact);
  if (!fact.had()) return;
  auto& status = fact.value;
  auto uids = out.initUids(4);
  auto gids = out.initGids(4);
  for (uint i = 0; i < 4; ++i) {
    uids.set(i, status.uids[i]);
    gids.set(i, status.gids[i]);
  }
  out.setNoNewPrivs(status.noNewPrivs);
  const std::pair<const char*, uint64_t> kSets[] = {{"effective", status.capEffective},
                                                    {"permitted", status.capPermitted},
                                                    {"bounding", status.capBounding},
                                                    {"inheritable", status.capInheritable},
                                                    {"ambient", status.capAmbient}};
  auto list = out.initCapabilities(std::size(kSets));
  for (uint i = 0; i < list.size(); ++i) writeSet(list[i], kSets[i].first, kSets[i].second);
  out.setSeccompMode(status.seccompMode);
  out.setFiltersCounted(status.seccompFilters.has_value());
  out.setInitFilters(status.seccompFilters.value_or(0));
}

void writeService(rpc::BoundaryCard::Builder out, Sandbox& sandbox, const Services& services,
                  Fact<StatusFacts> own) {
  if (own.had() && !own.value.seccompFilters) own.missing = "this kernel doesn't count them";
  writeOrigin(out.initServiceFiltersOrigin(), "/proc/self/status of the broker", own);
  out.setServiceFilters(own.value.seccompFilters.value_or(0));
  out.setServiceRefusedCalls(services.refusedCalls);
  if (!sandbox.runtime->isSandbox()) return;
  auto agent = services.agentProfile;
  if (sandbox.spec.explain) agent.name += " (asks)";
  write(out.initAgentProfile(), agent);
  out.setWorkloadFilters(sandbox.profile == nullptr ? 0 : 1);
}

void writeMap(capnp::List<rpc::IdMapLine>::Builder out, const std::vector<IdMapLine>& lines) {
  for (uint i = 0; i < out.size(); ++i) {
    out[i].setInside(lines[i].inside);
    out[i].setOutside(lines[i].outside);
    out[i].setCount(lines[i].count);
  }
}

// -------------------------------------------------------------- namespaces

struct Shown {
  rpc::Own own = rpc::Own::UNKNOWN;
  std::string by;
};

// From what every process may read of another, where inode numbers can't be.
class Conclusions {
 public:
  Conclusions(const ProcessFacts& init, const ProcessFacts& own) : init_(init), own_(own) {}

  Shown of(NamespaceKind kind) const {
    switch (kind) {
      case NamespaceKind::kUser:
        return user();
      case NamespaceKind::kMount:
        return mount();
      case NamespaceKind::kPid:
        return pid();
      case NamespaceKind::kNetwork:
        return network();
      case NamespaceKind::kIpc:
      case NamespaceKind::kUts:
      case NamespaceKind::kCgroup:
        break;
    }
    return {};
  }

 private:
  static rpc::Own ownIf(bool other) { return other ? rpc::Own::YES : rpc::Own::NO; }

  Shown user() const {
    if (!init_.uidMap.had() || !own_.uidMap.had()) return {};
    // The same map may stand in two of them.
    if (init_.uidMap.value == own_.uidMap.value) return {};
    return {rpc::Own::YES, "its uid_map is not the service's"};
  }

  // A mount belongs to one namespace, and its number to one mount.
  Shown mount() const {
    if (!init_.mounts.had() || init_.mounts.value.empty() || !own_.mounts.had()) return {};
    uint32_t root = init_.mounts.value[0].id;
    auto& mounts = own_.mounts.value;
    bool ours = std::any_of(mounts.begin(), mounts.end(),
                            [root](const MountFact& mount) { return mount.id == root; });
    return {ownIf(!ours), ours ? "its root is a mount of the service's"
                               : "its root is no mount of the service's"};
  }

  Shown pid() const {
    if (!init_.status.had()) return {};
    bool below = init_.status.value.pidLevels > 1;
    return {ownIf(below), below ? "NSpid: it has a number of its own below the service's"
                                : "NSpid: it has the service's numbers alone"};
  }

  Shown network() const {
    if (!init_.networkFile.had() || !own_.networkFile.had()) return {};
    bool other = init_.networkFile.value != own_.networkFile.value;
    return {ownIf(other), other ? "its /proc/PID/net/dev is another file"
                                : "its /proc/PID/net/dev is the service's"};
  }

  const ProcessFacts& init_;
  const ProcessFacts& own_;
};

constexpr char kNotReadable[] =
    "the kernel shows it to nobody but who may trace the init, and the service may not";

void writeNamespaces(capnp::List<rpc::NamespaceFact>::Builder out, const NamespaceInodes& inodes,
                     const NamespaceInodes& services, const ProcessFacts& init,
                     const ProcessFacts& own) {
  Conclusions conclusions(init, own);
  for (uint i = 0; i < out.size(); ++i) {
    out[i].setKind(kNamespaceNames[i]);
    out[i].setInode(inodes[i]);
    out[i].setServiceInode(services[i]);
    auto origin = out[i].initOrigin();
    origin.setSource(rpc::FactSource::KERNEL);
    Shown shown;
    if (inodes[i] != 0) {
      origin.setFrom("stat of /proc/self/ns by the sandbox's pid 1, at creation");
      if (services[i] != 0) {
        shown.own = inodes[i] == services[i] ? rpc::Own::NO : rpc::Own::YES;
        shown.by = "inode";
      }
    } else {
      origin.setFrom("/proc/PID/ns of the init");
      origin.setMissing(kNotReadable);
      shown = conclusions.of(static_cast<NamespaceKind>(i));
    }
    out[i].setOwn(shown.own);
    out[i].setShownBy(shown.by);
  }
}

// ------------------------------------------------------------------- lists

void writeMounts(rpc::BoundaryCard::Builder out, Fact<std::vector<MountFact>> fact,
                 bool isSandbox) {
  // They are the host's: no part of any boundary.
  if (fact.had() && !isSandbox) {
    fact = Fact<std::vector<MountFact>>::none("not a sandbox: it has the host's mounts");
  }
  writeOrigin(out.initMountsOrigin(), "/proc/PID/mountinfo of the init", fact);
  auto list = out.initMounts(static_cast<uint>(fact.value.size()));
  for (uint i = 0; i < list.size(); ++i) {
    auto& mount = fact.value[i];
    list[i].setWhere(mount.where);
    list[i].setFlags(mount.flags);
    list[i].setType(mount.type);
    list[i].setSource(mount.source);
    list[i].setRoot(mount.root);
    list[i].setOptions(mount.options);
  }
}

void writePlan(rpc::BoundaryCard::Builder out, Sandbox& sandbox) {
  auto plan = sandbox.runtime->mountPlan(requestOf(sandbox));
  auto list = out.initPlan(static_cast<uint>(plan.size()));
  for (uint i = 0; i < list.size(); ++i) {
    list[i].setWhat(plainText(plan[i].what));
    list[i].setWhere(plainPath(plan[i].where));
    list[i].setFlags(plan[i].flags);
  }
}

void writeLimits(rpc::BoundaryCard::Builder out, Sandbox& sandbox) {
  Fact<std::vector<LimitFact>> fact;
  KJ_IF_MAYBE (cgroups, sandbox.cgroups) {
    fact.value = (*cgroups)->readLimits();
  } else {
    fact.missing = "it has no cgroups: no limit holds for all of its programs together";
  }
  writeOrigin(out.initLimitsOrigin(), "the sandbox's cgroups", fact);
  auto list = out.initLimits(static_cast<uint>(fact.value.size()));
  for (uint i = 0; i < list.size(); ++i) {
    list[i].setGroup(fact.value[i].group);
    list[i].setFile(fact.value[i].file);
    list[i].setValue(fact.value[i].value);
    list[i].setMissing(fact.value[i].missing);
  }
}

void writeRlimits(rpc::BoundaryCard::Builder out, const Fact<std::vector<RlimitFact>>& fact) {
  writeOrigin(out.initRlimitsOrigin(), "/proc/PID/limits of the init", fact);
  auto list = out.initRlimits(static_cast<uint>(fact.value.size()));
  for (uint i = 0; i < list.size(); ++i) {
    list[i].setName(fact.value[i].name);
    list[i].setSoft(fact.value[i].soft);
    list[i].setHard(fact.value[i].hard);
    list[i].setUnit(fact.value[i].unit);
  }
}

void writeInterfaces(rpc::BoundaryCard::Builder out, const Fact<std::vector<InterfaceFact>>& fact) {
  writeOrigin(out.initInterfacesOrigin(), "/proc/PID/net/dev of the init", fact);
  auto list = out.initInterfaces(static_cast<uint>(fact.value.size()));
  for (uint i = 0; i < list.size(); ++i) {
    list[i].setName(fact.value[i].name);
    list[i].setReceivedBytes(fact.value[i].receivedBytes);
    list[i].setSentBytes(fact.value[i].sentBytes);
  }
}

void writeCore(rpc::BoundaryCard::Builder out, const Sandbox& sandbox) {
  out.setCoreCookie(sandbox.core.value);
  auto origin = out.initCoreOrigin();
  origin.setSource(rpc::FactSource::KERNEL);
  origin.setFrom(sandbox.whyNoCore.empty() ? sandbox.core.from
                                           : "PR_SCHED_CORE_GET by the broker, at creation");
  origin.setMissing(sandbox.whyNoCore);
}

}  // namespace

void writeCard(rpc::BoundaryCard::Builder out, Sandbox& sandbox, Services& services) {
  if (sandbox.runtime == nullptr || sandbox.init == nullptr || sandbox.initStatus() != nullptr) {
    out.setMissing("the sandbox's init does not run");
    return;
  }
  auto& child = *KJ_ASSERT_NONNULL(sandbox.init);
  auto init = readProcess(child.pid());
  // It was ours and not waited for before and after, so all of that was its.
  if (child.exited() != nullptr) {
    out.setMissing("the sandbox's init has ended while it was looked at");
    return;
  }
  auto own = readProcess(0);

  bool isSandbox = sandbox.runtime->isSandbox();
  out.setIsSandbox(isSandbox);
  out.setRuntimeVersion(sandbox.runtime->version());
  out.setArgumentsChosenBy(sandbox.runtime->argumentsChosenBy());
  writeStatus(out, init.status);
  writeService(out, sandbox, services, own.status);
  writeOrigin(out.initUidMapOrigin(), "/proc/PID/uid_map of the init", init.uidMap);
  writeMap(out.initUidMap(static_cast<uint>(init.uidMap.value.size())), init.uidMap.value);
  writeOrigin(out.initGidMapOrigin(), "/proc/PID/gid_map of the init", init.gidMap);
  writeMap(out.initGidMap(static_cast<uint>(init.gidMap.value.size())), init.gidMap.value);
  writeNamespaces(out.initNamespaces(kNamespaceNames.size()), sandbox.namespaces,
                  services.namespaces, init, own);
  writeMounts(out, kj::mv(init.mounts), isSandbox);
  writePlan(out, sandbox);
  writeLimits(out, sandbox);
  writeRlimits(out, init.rlimits);
  writeInterfaces(out, init.interfaces);
  writeCore(out, sandbox);
}

}  // namespace cordon::broker
