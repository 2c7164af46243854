#include <sched.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

#include "jailer/steps.h"

namespace cordon::jailer {

namespace {

// clone3's argument: linux/sched.h can't be included beside sched.h.
struct CloneArguments {
  uint64_t flags, pidfd, childTid, parentTid, exitSignal, stack, stackSize, tls, setTid, setTidSize,
      cgroup;
};
constexpr uint64_t kIntoCgroup = 0x200000000;

// The user and network namespaces are prepared already.
constexpr uint64_t kNew = CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS;

}  // namespace

void becomeInit(JailSpec::Reader spec, const Prepared& prepared) {
  CloneArguments arguments = {};
  // A child of the broker, who alone waits for it; with CLONE_PARENT there is
  // no signal to name.
  arguments.flags = kNew | CLONE_PARENT;
  if (spec.getCgroups() == CgroupEntry::BORN_INSIDE) {
    arguments.flags |= kIntoCgroup;
    arguments.cgroup = kFirstCgroupFd;
  } else {
    arguments.flags |= CLONE_NEWCGROUP;
  }
  long pid = require(Step::kNamespaces, syscall(SYS_clone3, &arguments, sizeof(arguments)));
  if (pid == 0) {
    // No terminal or process group of the host's.
    require(Step::kNamespaces, setsid());
    return;
  }
  Report report;
  report.kind = Report::kBorn;
  report.pid = static_cast<int32_t>(pid);
  // Without it the broker kills by cgroup.
  bool told = write(kStatusFd, &report, sizeof(report)) == sizeof(report);
  // Whether it did its work is the init's to see; ours is that it is gone.
  waitpid(prepared.child, nullptr, 0);
  _exit(told ? 0 : 1);
}

void enterNetwork(const Prepared& prepared) {
  require(Step::kNamespaces, setns(prepared.network, CLONE_NEWNET));
}

void noteNamespaces(const Prepared& prepared) {
  for (size_t i = 0; i < kNamespaces.size(); ++i) {
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/ns/%s", kNamespaces[i]);
    struct stat status;
    bool user = i == 0;  // entered only at the end, and open here
    require(Step::kNamespaces, user ? fstat(prepared.user, &status) : stat(path, &status));
    noteNamespace(i, status.st_ino);
  }
}

}  // namespace cordon::jailer
