#include "broker/main/agent_config.h"

#include <string>
#include <vector>

#include "broker/main/execs.h"
#include "ipc/agent_ids.h"

namespace cordon::broker {

namespace {
// The frontend's deadline fires first; the agent's is the backstop.
constexpr uint64_t kDeadlineMarginMs = 500;

guest::JoinMode joinMode(const SandboxCgroups* cgroups) {
  if (cgroups == nullptr) return guest::JoinMode::SUBREAPER;
  switch (cgroups->mode()) {
    case CgroupMode::kV1:
      return guest::JoinMode::CGROUP_V1;
    case CgroupMode::kV2:
      return guest::JoinMode::CGROUP_V2;
    case CgroupMode::kNone:
      break;
  }
  return guest::JoinMode::SUBREAPER;
}
}  // namespace

void writeAgentConfig(guest::AgentConfig::Builder config, const AgentFacts& facts) {
  auto& limits = facts.spec.limits;
  bool sandbox = facts.runtime.isSandbox();
  config.setJoin(joinMode(facts.cgroups));
  config.setSwitchUser(sandbox);
  if (facts.image != nullptr) {
    config.setDefaultUid(facts.image->defaultUid);
    config.setDefaultGid(facts.image->defaultGid);
  }
  config.setAgentUid(ipc::kAgentUid);
  std::string workDir = sandbox ? "/work" : facts.directory + "/work";
  config.setWorkDir(workDir);
  std::vector<std::string> scratch = {workDir};
  if (sandbox) scratch = {workDir, "/tmp", "/dev/shm"};
  auto list = config.initScratch(static_cast<uint>(scratch.size()));
  for (uint i = 0; i < scratch.size(); ++i) list.set(i, scratch[i]);
  config.setMaxExecs(Execs::kMaxLive);
  config.setFileSizeBytes(limits.fileSizeBytes);
  config.setFiles(limits.files);
  config.setCpuTimeMs(limits.cpuTimeMs);
  config.setDeadlineMs(limits.wallMs + kDeadlineMarginMs);
  config.setOutputBytes(limits.outputBytes);
  if (!sandbox) {
    config.setDataBytes(limits.memoryBytes);
    config.setProcesses(limits.pids);
  }
}

}  // namespace cordon::broker
