// Capabilities as masks, by system calls alone: for the jailer, for what runs
// between fork and exec, and for the services, which narrow themselves.
#pragma once
#include <cstdint>

namespace cordon::jailer {

constexpr uint64_t capabilityBit(int capability) {
  return uint64_t{1} << capability;
}

// All of these: false, with errno, when the kernel refused.

// Takes all others out of the bounding set, which is what an exec can ever give
// back. EPERM without CAP_SETPCAP, when one of them is in it.
bool keepInBoundingSet(uint64_t kept);

struct CapabilitySets {
  uint64_t effective = 0, permitted = 0, inheritable = 0;
};
// Of this thread. What is not inheritable leaves the ambient set by itself.
bool setCapabilities(const CapabilitySets& sets);
// Into the ambient set, so that they stay through the exec of who is not root.
bool raiseAmbient(uint64_t capabilities);
bool clearAmbient();

}  // namespace cordon::jailer
