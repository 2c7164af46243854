// What a client asked for, checked wholly before anything happens.
#pragma once
#include <kj/one-of.h>
#include <kj/time.h>

#include <string>

#include "broker/limits.h"
#include "broker/main/failure.h"

namespace cordon::broker {

// The seccomp profile of a spec that names none.
constexpr const char* kDefaultProfile = "default";

struct ValidSpec {
  std::string runtime;   // "" = the instance's default
  std::string image;     // "" = host-usr
  std::string hostname;  // "" = the sandbox's name
  std::string seccomp;   // "" = the default
  bool explain = false;
  ResolvedLimits limits;
  kj::Duration ttl = 0 * kj::SECONDS;
  kj::Duration idle = 0 * kj::SECONDS;
};

// Everything that can be told without touching the host. Whether the runtime,
// the image and the profile exist is asked by the caller.
kj::OneOf<ValidSpec, Failure> validateSpec(rpc::SandboxSpec::Reader asked,
                                           const Ceilings& ceilings);

}  // namespace cordon::broker
