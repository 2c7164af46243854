#include "runtimes/host_checks.h"

#include <unistd.h>

#include <fstream>

#include "broker/core_scheduling.h"

namespace cordon::runtimes {

std::string firstLine(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

kj::Maybe<Probe> checkHost(const broker::CgroupTree& cgroups) {
  if (geteuid() != 0) return Probe::no("needs root", "start cordon up as root");
  if (cgroups.mode() == broker::CgroupMode::kNone) {
    return Probe::no(cgroups.whyNone(),
                     "mount a cgroup hierarchy with the memory and pids controllers");
  }
  if (access("/proc/self/ns/user", F_OK) != 0 ||
      firstLine("/proc/sys/user/max_user_namespaces") == "0") {
    return Probe::no("user namespaces are not available",
                     "sysctl user.max_user_namespaces=15000 (and a kernel with CONFIG_USER_NS)");
  }
  return nullptr;
}

void addHostNotes(Probe& probe) {
  if (!broker::smtIsOn()) return;
  if (auto why = broker::whyNoCoreScheduling(); !why.empty()) {
    probe.notes.push_back("no core scheduling: " + why);
  }
}

}  // namespace cordon::runtimes
