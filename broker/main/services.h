// What the parts of the broker share. Made once in main, which owns all of it.
#pragma once
#include <kj/async-unix.h>
#include <kj/timer.h>

#include <functional>
#include <string>
#include <vector>

#include "broker/cgroups.h"
#include "broker/children.h"
#include "broker/core_scheduling.h"
#include "broker/kernel_facts.h"
#include "broker/limits.h"
#include "broker/main/ledger.h"
#include "broker/main/runtime_set.h"
#include "broker/main/turn_clock.h"
#include "broker/main/workload_profile.h"
#include "runtimes/images.h"

namespace cordon::broker {

class Snapshots;

struct Services {
  kj::UnixEventPort& port;
  kj::Timer& timer;
  TurnClock& clock;
  Children& children;
  CgroupTree& cgroups;
  Ledger& ledger;
  runtimes::ImageStore& images;
  RuntimeSet& runtimes;
  Ceilings ceilings;
  // All that there are. They outlive every sandbox.
  std::vector<WorkloadProfile> profiles;
  // Where the directories of sandboxes are made; ours, 0711.
  std::string sandboxesDirectory;
  bool allowHostRuntime = false;
  // "" = every sandbox is asked for with a core scheduling cookie of its own.
  std::function<std::string()> whyNoCoreScheduling = broker::whyNoCoreScheduling;
  LeafBudget leaves = LeafBudget::ofThisProcess();
  // For the boundary card.
  WorkloadProfile agentProfile = {};  // the agent's own filter
  int askingAgentFilter = -1;         // a sealed memfd; not ours to close
  uint32_t refusedCalls = 0;          // by the broker's own filter
  NamespaceInodes namespaces = ownNamespaces();
  Snapshots* snapshots = nullptr;  // null: none are taken or restored
};

}  // namespace cordon::broker
