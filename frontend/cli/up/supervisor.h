// `cordon up`: runs the broker and the agents' frontend as parts of one
// instance, in the foreground, and ends them in order.
//
//   check who we are → state directory → sockets → broker → frontend → `ready`
//   → serve: a part that dies is started again
//   → SIGTERM or SIGINT: frontend, broker (which destroys everything), sockets
//
// The sockets are this process's: clients that connect while a part is started
// again wait for it.
#pragma once
#include <sys/types.h>

#include <string>
#include <vector>

namespace cordon::up {

struct UpOptions {
  std::string state;
  std::vector<std::string> images;
  bool allowHostRuntime = false;
  uid_t agentsUid = 1879048193;  // and gid
  mode_t agentsMode = 0660;      // of agents.sock, with separated frontends
  gid_t agentsGroup = 0;         // likewise
  std::string defaultRuntime, runc, idSpan, idRegistry, cgroupBase,
      vmAgent;                            // "" = the broker's defaults
  std::string maxSandboxes, maxPerOwner;  // likewise
  std::string snapshots, maxSnapshots, maxSnapshotsPerOwner, snapshotBytes, snapshotBytesPerOwner;
  std::string libexec;  // where the programs lie; "" = beside this one
};

// Serves until SIGTERM or SIGINT; returns the exit status. Throws UsageError
// for what the user must change, std::system_error for what the system refused.
int serve(const UpOptions& options);

}  // namespace cordon::up
