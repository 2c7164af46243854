// What cordon-jailer is told about one sandbox (jailer/jail.capnp).
#pragma once
#include <kj/io.h>

#include "jailer/jail.capnp.h"
#include "runtimes/runtime.h"

namespace cordon::runtimes {

// The spec of a request: the mounts in order, limits, ids. `cpus` as
// maskedPaths(). `cgroupFds`: how many descriptors the jailer gets for its cgroup.
void fillJailSpec(jailer::JailSpec::Builder spec, const CreateRequest& request, unsigned cpus,
                  uint32_t cgroupFds);

// The same mounts as Runtime::mountPlan() tells them.
MountPlan jailMountPlan(const CreateRequest& request, unsigned cpus);

// In a sealed memfd.
kj::AutoCloseFd sealedSpec(const CreateRequest& request, unsigned cpus, uint32_t cgroupFds);

// Of a jail for cordon-copier: an empty root, and nothing but its descriptors.
kj::AutoCloseFd sealedCopierSpec(const CopyRequest& request, uint32_t cgroupFds);

}  // namespace cordon::runtimes
