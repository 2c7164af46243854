// The `jail` runtime: vm-agent started by cordon-jailer (jailer/main.cc), which
// builds one sandbox and becomes it.
//
// What the jailer is given is a sealed spec and descriptors: the image as a
// detached mount, vm-agent and its filter in sealed memfds, the agent's cgroup.
// Nothing is kept below the request's directory: a sandbox is its processes.
#pragma once
#include <kj/timer.h>

#include <string>

#include "runtimes/runtime.h"

namespace cordon::runtimes {

// The agent's, in sealed memfds; they outlive the runtime.
struct JailFilters {
  int refusing = -1;
  int asking = -1;  // for CreateRequest::explain
};

struct JailOptions {
  std::string jailer;   // absolute path of cordon-jailer
  std::string vmAgent;  // absolute path; copied once, before the first sandbox
  JailFilters filters;
  // How long the jailer may take until it is killed (runtimeTimeout).
  kj::Duration createTimeout = 10 * kj::SECONDS;
  // Null: there are no snapshots. Outlives the runtime.
  Copying* copying = nullptr;
};

// `children`, `timer` and `cgroups` must outlive the runtime.
kj::Own<Runtime> makeJailRuntime(broker::Children& children, kj::Timer& timer,
                                 const broker::CgroupTree& cgroups, JailOptions options);

}  // namespace cordon::runtimes
