// What an earlier broker left, destroyed before this one serves.
//
// In order:
//   1. as root: processes in an earlier broker's mount namespace are killed (a
//      runtime that was half way, agents of `host`). They are known by a mount
//      that only a broker of this instance has, never by a remembered pid.
//   2. every record, also one that can't be read; every cgroup directory of this
//      instance without a record; every directory of a sandbox without one:
//      killed by cgroup, its parts removed, its record last.
#pragma once
#include <kj/async.h>

#include <string>

#include "broker/main/destruction.h"
#include "broker/main/registry.h"
#include "broker/main/services.h"

namespace cordon::broker {

// `mountPoint`: of this instance's private tmpfs. Blocking; before serving.
// Returns how many were killed.
size_t killEarlierNamespace(const std::string& mountPoint);

// Resolves when every one has been tried once; what is left is retried later.
kj::Promise<void> recover(Services& services, Registry& registry, Destruction& destruction);

}  // namespace cordon::broker
