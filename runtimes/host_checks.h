// What every runtime that is a sandbox needs of the host.
#pragma once
#include <kj/common.h>

#include <string>

#include "broker/cgroups.h"
#include "runtimes/runtime.h"

namespace cordon::runtimes {

// Root, cgroups and user namespaces: a refusal where one of them is not there.
kj::Maybe<Probe> checkHost(const broker::CgroupTree& cgroups);

// Adds what an operator should know of any of them.
void addHostNotes(Probe& probe);

// Of a file of the kernel's; "" where there is none.
std::string firstLine(const char* path);

}  // namespace cordon::runtimes
