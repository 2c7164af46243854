// Killing and removing whole cgroup subtrees, one bounded pass at a time.
#pragma once
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "broker/cgroups_dir.h"

namespace cordon::broker {

// Every directory of the subtree, deepest first, `top` itself last.
std::vector<CgroupDir> subtree(CgroupDir top);

// One pass: SIGKILL to every process that `list` names (at most 512 a pass). A
// process is killed through a pidfd that was opened before `list` named it a
// second time, so a number that was reused in between is not hit. True when
// `list` named nobody.
//
// Fork-proof only together with something that stops forks (pids.max = 0): a
// process in the middle of fork is still listed, and its child is by then, too.
bool killListed(const std::function<std::vector<pid_t>()>& list);

// rmdir of `name` below `parent` with all that is in it, deepest first. Adds
// what was there to `seen` and what could not be removed to `left`.
void removeSubtree(const CgroupDir& parent, const std::string& name, std::set<std::string>& seen,
                   std::vector<LeftOver>& left);

}  // namespace cordon::broker
