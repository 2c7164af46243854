// The command line of cordon-broker.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "broker/ids.h"
#include "broker/snapshots.h"

namespace cordon::broker {

struct Options {
  std::string state;    // absolute; StateDirectory makes it
  uid_t agentsUid = 0;  // whose connections get the AgentPort
  std::vector<std::string> imageDirs;
  bool allowHostRuntime = false;
  std::string defaultRuntime;  // "" = jail
  std::string runc;            // "" = looked for
  uint32_t runcSeconds = 20;   // it may take to start a sandbox
  std::string vmAgent;         // absolute
  std::string jailer;          // absolute
  std::string copier;          // absolute
  std::string snapshots;       // directory; "" = below the state directory
  SnapshotCaps snapshotCaps;
  IdSpan ids;
  std::string idRegistry = "/run/cordon/ids";
  std::string cgroupBase = "/cordon";
  uint32_t maxSandboxes = 256;
  uint32_t maxSandboxesPerOwner = 128;
  bool help = false;
};

const char* usage();

// Throws (kj) with a sentence for the user when something is wrong. Fills in
// the defaults that depend on who runs it and on where the program lies.
Options parseOptions(int argc, char** argv);

}  // namespace cordon::broker
