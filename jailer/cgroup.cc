#include <sched.h>
#include <unistd.h>

#include "jailer/steps.h"

namespace cordon::jailer {

void joinCgroups(JailSpec::Reader spec) {
  if (spec.getCgroups() != CgroupEntry::JOIN_TASKS) return;
  for (uint32_t i = 0; i < spec.getCgroupFds(); ++i) {
    // "0" is the thread that writes: 70 us, where moving another by its number
    // waits for a grace period of some 8 ms.
    int fd = kFirstCgroupFd + static_cast<int>(i);
    require(Step::kCgroup, write(fd, "0", 1), i);
  }
}

void enterCgroupNamespace(JailSpec::Reader spec) {
  // v1: made at birth (CLONE_NEWCGROUP), rooted where the jailer had joined.
  // v2: prepared by the broker, rooted at the sandbox: the agent's children are
  // born in cgroups beside its own.
  if (spec.getCgroups() != CgroupEntry::BORN_INSIDE) return;
  require(Step::kCgroup, setns(kFirstCgroupFd + 1, CLONE_NEWCGROUP));
}

}  // namespace cordon::jailer
