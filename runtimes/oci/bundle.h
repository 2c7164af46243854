// The OCI configuration of a sandbox: the one place where its boundary is
// written down, every field of it by us.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "runtimes/runtime.h"

namespace cordon::runtimes {

// Where the image store binds the agent in every skeleton.
constexpr char kAgentPath[] = "/.cordon/vm-agent";

struct BundleInput {
  std::string hostname;
  const Image* image = nullptr;
  broker::ResolvedLimits limits;
  IdRange ids;
  std::string cgroupsPath;  // of the agent: PATH/agent
  bool cgroupV2 = false;
  std::string cgroupNamespacePath;  // v2: a file that is the namespace; "" = a new one
  uint64_t hardFiles = 0;           // our own hard RLIMIT_NOFILE
  uint64_t hardCore = 0;            // our own hard RLIMIT_CORE
  unsigned cpus = 1;                // possible CPUs of the host (masked paths)
  std::string seccomp;              // linux.seccomp as JSON; "" = none
  // Of a sandbox with /work and /tmp mounted already (oci/runc_scratch.h); "" = the
  // image's, in which runc mounts them.
  std::string ownRoot;
};

// The text of config.json.
std::string bundleConfig(const BundleInput& input);

// What runc mounts of it.
MountPlan bundleMountPlan(const BundleInput& input);

}  // namespace cordon::runtimes
