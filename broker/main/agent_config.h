// The configuration that vm-agent gets before anything else.
#pragma once
#include "broker/main/spec.h"
#include "ipc/guest.capnp.h"
#include "runtimes/runtime.h"

namespace cordon::broker {

struct AgentFacts {
  const ValidSpec& spec;
  const runtimes::Runtime& runtime;
  const runtimes::Image* image;   // null on host
  const SandboxCgroups* cgroups;  // null on host
  const std::string& name;
  const std::string& directory;
};

void writeAgentConfig(guest::AgentConfig::Builder config, const AgentFacts& facts);

}  // namespace cordon::broker
