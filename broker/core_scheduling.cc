#include "broker/core_scheduling.h"

#include <string.h>

#include <fstream>

#include "jailer/core_scheduling.h"

namespace cordon::broker {

bool smtIsOn() {
  std::ifstream file("/sys/devices/system/cpu/smt/active");
  char active = 0;
  // Kernels without the file can't switch them, and may well have them.
  return !file.get(active) || active != '0';
}

std::string describeCoreScheduling(int error, bool smt) {
  constexpr char kNotNeeded[] = "no two programs share a core: SMT is off as this kernel sees it";
  switch (error) {
    case 0:
      return "";
    case ENODEV:
      return kNotNeeded;
    case EINVAL:
      return smt ? "this kernel has none (CONFIG_SCHED_CORE), and SMT is on: threads of one core "
                   "may run two sandboxes"
                 : std::string(kNotNeeded) + ", which has no core scheduling (CONFIG_SCHED_CORE)";
    default:
      return std::string("the kernel refuses it: ") + strerror(error);
  }
}

std::string whyNoCoreScheduling() {
  unsigned long cookie = 0;
  return describeCoreScheduling(jailer::readCoreCookie(cookie), smtIsOn());
}

}  // namespace cordon::broker
