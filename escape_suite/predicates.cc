#include "escape_suite/predicates.h"

#include <string.h>

#include <algorithm>

#include "escape_suite/judging.h"
#include "escape_suite/programs/died_by_signal.h"

namespace cordon::escape {
namespace {

Judgement networkRefused(const Observation& o) {
  return allRefused(o, "network");
}
Judgement filesystemRefused(const Observation& o) {
  return allRefused(o, "filesystem");
}
Judgement privilegesRefused(const Observation& o) {
  return allRefused(o, "privileges");
}

struct Row {
  const char* program;
  Predicate predicate;
};

constexpr Row kPredicates[] = {
    {"connect", connectOutside},
    {"raw_socket", networkRefused},
    {"write_outside", writeOutside},
    {"read_shadow", readShadow},
    {"mount", filesystemRefused},
    {"memory", memory},
    {"cpu", cpu},
    {"sleep", sleeping},
    {"fork", forkMany},
    {"three_children", threeChildren},
    {"flood", flood},
    {"big_file", bigFile},
    {"files", openFiles},
    {"kill_all", killAll},
    {"user_namespace", privilegesRefused},
    {"ptrace_agent", privilegesRefused},
    {"agent_memory", privilegesRefused},
    {"module_load", privilegesRefused},
    {"mknod", privilegesRefused},
    {"setuid_binary", privilegesRefused},
    {"raise_rlimits", privilegesRefused},
    {"write_proc_sys", filesystemRefused},
    {"sysrq", filesystemRefused},
    {"write_cgroup", filesystemRefused},
    {"overwrite_agent_exe", filesystemRefused},
    {"inherited_fds", inheritedFds},
    {"daemon", daemonOutlives},
    {"fill_tmp", fillTmp},
    {"fill_shm", fillShm},
    {"core_rlimit", coreRlimit},
    {"io_uring", privilegesRefused},
    {"bpf", privilegesRefused},
    {"userfaultfd", privilegesRefused},
    {"keyctl", privilegesRefused},
    {"perf_event_open", privilegesRefused},
    {"stop_agent", privilegesRefused},
    {"steal_descriptors", stealDescriptors},
    {"become_root", privilegesRefused},
    {"posture", posture},
    {"memfd_exec", posture},
    {"chroot", privilegesRefused},
    {"file_handles", privilegesRefused},
    {"hard_links", filesystemRefused},
    {"rename_mounts", filesystemRefused},
    {"symlink_maze", symlinkMaze},
    {"many_inodes", manyInodes},
    {"sysv_shm", sysvShm},
    {"zombies", zombies},
    {"devices", devices},
    {"system_wide", privilegesRefused},
    {"terminal", filesystemRefused},
    {"netlink", netlink},
    {"socket_scan", socketScan},
    {"foreign_abi", privilegesRefused},
};

}  // namespace

const char* name(Containment containment) {
  switch (containment) {
    case Containment::kContained:
      return "contained";
    case Containment::kEscaped:
      return "escaped";
    case Containment::kInconclusive:
      return "inconclusive";
  }
  return "inconclusive";
}

std::string errnoName(int64_t error) {
  if (error > escape_programs::kDiedBySignal) {
    return "signal " + number(error - escape_programs::kDiedBySignal);
  }
  const char* known =
      error > 0 && error < 4096 ? strerrorname_np(static_cast<int>(error)) : nullptr;
  return known != nullptr ? known : "errno " + number(error);
}

Judgement judge(const Observation& o) {
  const Row* row = std::find_if(std::begin(kPredicates), std::end(kPredicates),
                                [&](const Row& each) { return each.program == o.program; });
  if (row == std::end(kPredicates)) return inconclusive("no such program");
  Judgement judgement = row->predicate(o);
  if (o.exec.control == "sandbox_lost") {
    return escaped("the sandbox died: " + withCounters(howItEnded(o.exec), o.exec));
  }
  if (o.outside.released && !o.outside.receiptComplete) {
    return escaped("left behind: " + o.outside.receiptLeft);
  }
  if (judgement.containment != Containment::kContained) return judgement;
  if (!o.outside.answersAfter) return escaped("the sandbox does not answer any more");
  if (!o.outside.released) return inconclusive("the release was not answered");
  return judgement;
}

}  // namespace cordon::escape
