// The end of a create that failed half way: nothing of the sandbox lives on.
#pragma once
#include <kj/async.h>
#include <kj/timer.h>

#include <string>

#include "broker/cgroups.h"
#include "broker/children.h"

namespace cordon::runtimes {

// Kills everything in the sandbox's cgroups, pass after pass, for about two
// seconds; what is then left is logged, and the caller's cleanup reports it. All
// of the arguments outlive the promise.
kj::Promise<void> killCgroups(broker::SandboxCgroups& cgroups, broker::Children& children,
                              kj::Timer& timer, const std::string& name, unsigned attempts = 1000);

// Kills the program that makes a sandbox, and its process group, which it leads
// as everything that Children starts. Resolves when it is reaped; one that hangs
// in the kernel stays ours to reap, and is waited for only so long.
kj::Promise<void> killProgram(broker::Child& program, kj::Timer& timer, kj::Duration atMost);

}  // namespace cordon::runtimes
