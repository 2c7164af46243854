// The `host` runtime: vm-agent as a plain child of the broker.
//
// It is not a sandbox: programs run as the invoking user, on the machine's own
// files and network, with rlimits and nothing else. It exists so that the escape
// suite has something to fail and the stack runs without privileges, and only a
// private instance that asked for it (`cordon up --allow-host-runtime`) has it.
#pragma once
#include <string>

#include "runtimes/runtime.h"

namespace cordon::runtimes {

struct HostOptions {
  bool allowed = false;  // --allow-host-runtime
  std::string vmAgent;   // absolute path
};

// `children` must outlive the runtime.
//
// create() makes DIRECTORY/work (the agent's cwd, 0700, the broker's own uid)
// and starts the agent in a session of its own with an empty environment and
// the control socket as fd 0. cleanup() removes DIRECTORY/work with all that
// programs left in it.
kj::Own<Runtime> makeHostRuntime(broker::Children& children, HostOptions options);

}  // namespace cordon::runtimes
