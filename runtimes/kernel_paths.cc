#include "runtimes/kernel_paths.h"

#include <algorithm>

namespace cordon::runtimes {

std::vector<std::string> maskedPaths(unsigned cpus) {
  std::vector<std::string> paths = {"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore",
                                    "/proc/keys", "/proc/key-users", "/proc/latency_stats",
                                    // Anyone may write a trigger into these, for which
                                    // the host's kernel then works.
                                    "/proc/pressure", "/proc/sched_debug", "/proc/scsi",
                                    "/proc/timer_list", "/proc/timer_stats", "/sys/firmware",
                                    "/sys/devices/virtual/powercap"};
  constexpr unsigned kMost = 1024;  // each is a mount where it exists
  for (unsigned cpu = 0; cpu < std::min(cpus, kMost); ++cpu) {
    paths.push_back("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/thermal_throttle");
  }
  return paths;
}

std::vector<std::string> readOnlyPaths() {
  return {"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"};
}

uint64_t agentFiles(uint64_t workloadFiles) {
  constexpr uint64_t kFewest = 4096;
  return std::max(kFewest, workloadFiles);
}

uint64_t scratchInodes(uint64_t bytes) {
  constexpr uint64_t kPage = 4096;
  constexpr uint64_t kFewest = 64;
  return std::max(bytes / kPage, kFewest);
}

}  // namespace cordon::runtimes
