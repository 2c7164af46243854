// The processes of an exec where there is no cgroup: a minimal child of the
// agent, to which all that main leaves behind falls back.
//
//   agent ── subreaper ── main ── …
//
// It waits for main and reports its end; on an order, or when the agent is
// gone, it kills every descendant and leaves when there is none.
#pragma once
#include <memory>
#include <set>

#include "vm_agent/processes.h"

namespace cordon::agent {

// The agent's direct children that are subreapers; everything else that falls
// to the agent came from one that was killed.
struct Subreapers {
  std::set<pid_t> pids;
};

std::unique_ptr<Processes> makeSubreaperProcesses(Loop& loop, Subreapers& registry,
                                                  Processes::OnMainEnd onMainEnd);

}  // namespace cordon::agent
