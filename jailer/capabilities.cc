#include "jailer/capabilities.h"

#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace cordon::jailer {

namespace {
constexpr int kMost = 64;

bool has(uint64_t set, int capability) {
  return (set & capabilityBit(capability)) != 0;
}
}  // namespace

bool keepInBoundingSet(uint64_t kept) {
  // The kernel's last capability is the last that it answers for.
  for (int c = 0; c < kMost; ++c) {
    int in = prctl(PR_CAPBSET_READ, c, 0, 0, 0);
    if (in < 0) break;
    if (in == 1 && !has(kept, c) && prctl(PR_CAPBSET_DROP, c, 0, 0, 0) < 0) return false;
  }
  return true;
}

bool setCapabilities(const CapabilitySets& sets) {
  __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {};
  for (unsigned half = 0; half < _LINUX_CAPABILITY_U32S_3; ++half) {
    data[half].effective = static_cast<uint32_t>(sets.effective >> (32 * half));
    data[half].permitted = static_cast<uint32_t>(sets.permitted >> (32 * half));
    data[half].inheritable = static_cast<uint32_t>(sets.inheritable >> (32 * half));
  }
  return syscall(SYS_capset, &header, data) == 0;
}

bool raiseAmbient(uint64_t capabilities) {
  for (int c = 0; c < kMost; ++c) {
    if (has(capabilities, c) && prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, c, 0, 0) < 0) {
      return false;
    }
  }
  return true;
}

bool clearAmbient() {
  return prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) == 0;
}

}  // namespace cordon::jailer
