#include <errno.h>

#include <string>

#include "jailer/seccomp.h"
#include "jailer/seccomp_profile.h"

namespace cordon::jailer {

namespace {

// Call names are letters, digits and '_': nothing here needs escaping.
std::string namesAsJson(const SyscallGroup& group) {
  std::string json = "[";
  for (const char* call : group.calls) {
    if (json.size() > 1) json += ",";
    json += std::string("\"") + call + "\"";
  }
  return json + "]";
}

// OCI: `value` is the mask and `valueTwo` what the masked argument must equal.
std::string matchAsJson(const ArgMatch& match) {
  return "{\"index\":" + std::to_string(match.index) + ",\"value\":" + std::to_string(match.mask) +
         ",\"valueTwo\":" + std::to_string(match.value) + ",\"op\":\"SCMP_CMP_MASKED_EQ\"}";
}

void append(std::string& rules, const std::string& rule) {
  if (!rules.empty()) rules += ",";
  rules += rule;
}

void appendAllowed(std::string& rules, const SyscallGroup& group) {
  std::string head = "{\"names\":" + namesAsJson(group) + ",\"action\":\"SCMP_ACT_ALLOW\"";
  if (group.whenAnyOf.empty()) append(rules, head + "}");
  // One rule for each: conditions inside a rule all have to hold.
  for (const ArgMatch& match : group.whenAnyOf) {
    append(rules, head + ",\"args\":[" + matchAsJson(match) + "]}");
  }
}

}  // namespace

std::string agentFilterAsOciJson() {
  Profile profile = agentProfile();
  std::string rules;
  for (const SyscallGroup& group : profile.allowed) appendAllowed(rules, group);
  for (const SyscallGroup& group : profile.absent) {
    append(rules, "{\"names\":" + namesAsJson(group) +
                      ",\"action\":\"SCMP_ACT_ERRNO\",\"errnoRet\":" + std::to_string(group.error) +
                      "}");
  }
  // No flags: in particular not SPEC_ALLOW, which runc would set by itself.
  return "{\"defaultAction\":\"SCMP_ACT_ERRNO\",\"defaultErrnoRet\":" + std::to_string(EPERM) +
         ",\"architectures\":[\"SCMP_ARCH_X86_64\"],\"flags\":[],\"syscalls\":[" + rules + "]}";
}

}  // namespace cordon::jailer
