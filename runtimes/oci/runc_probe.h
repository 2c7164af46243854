// Can this host run runc sandboxes, and if not, why and what to do.
#pragma once
#include <kj/timer.h>

#include <string>

#include "runtimes/runtime.h"

namespace cordon::runtimes {

// The first runc in the usual places; "" when there is none.
std::string findRunc();

kj::Promise<Probe> probeRunc(broker::Children& children, kj::Timer& timer,
                             const broker::CgroupTree& cgroups, const std::string& runc);

}  // namespace cordon::runtimes
