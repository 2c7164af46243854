// The `runc` runtime: vm-agent behind a hardened OCI bundle (oci/bundle.h).
//
// `runc run --detach` is run once per sandbox, with the control socket as fd 0;
// nothing of runc stays, and no `runc exec` or `runc delete` ever runs. What
// runc prints never goes to a pipe: a detached container would hold it for life.
//
// Made below the request's directory (all of it gone after cleanup()):
//   bundle/config.json   the bundle
//   state/NAME/          runc's --root
//   init.pid, runc.log
//   root                 while runc runs (oci/runc_scratch.h)
// runc's and so the agent's stdout and stderr are a memfd of fixed size, which
// nobody can grow and nobody waits on.
#pragma once
#include <kj/timer.h>

#include <string>

#include "runtimes/runtime.h"

namespace cordon::runtimes {

struct RuncOptions {
  // Absolute path; "" looks in /usr/local/sbin, /usr/sbin, /usr/bin and so on.
  std::string runc;
  // How long `runc run` may take until it is killed (runtimeTimeout).
  kj::Duration createTimeout = 20 * kj::SECONDS;
  // Null: there are no snapshots. Outlives the runtime.
  Copying* copying = nullptr;
};

// `children`, `timer` and `cgroups` must outlive the runtime. The broker must be a
// child subreaper (broker::becomeSubreaper), or the init can't be adopted.
kj::Own<Runtime> makeRuncRuntime(broker::Children& children, kj::Timer& timer,
                                 const broker::CgroupTree& cgroups, RuncOptions options);

}  // namespace cordon::runtimes
