// Seccomp profiles as data, and their compilation.
//
// A profile is an allow-list written by call names, a reason per entry (group),
// with argument rules where they matter (seccomp_profile.cc). Everything else
// answers EPERM (ENOSYS for clone3 and for calls newer than the list, so that
// libc falls back). A call through the x32 or ia32 entry kills the process: it
// dies of SIGSYS.
#pragma once
#include <kj/io.h>

#include <cstddef>
#include <string>
#include <vector>

namespace cordon::jailer {

struct Profile;

struct CompiledProfile {
  std::string name;     // as asked for
  kj::AutoCloseFd bpf;  // sealed memfd with struct sock_filter[]
  size_t instructions = 0;
  size_t allowedCalls = 0;  // names that pass at least for some arguments
  size_t knownCalls = 0;    // calls of this architecture that libseccomp knows
};

// `default`: about what container engines allow. RLIMIT_CORE can't be changed
// (prlimit64 and setrlimit are matched on the low 32 bits of the resource).
// `tuned` and `build`: what programs of a kind were seen to need, and no more.
// docs/seccomp.md has the tables. Throws for another name.
CompiledProfile compileProfile(const std::string& name);
CompiledProfile compileProfile(const std::string& name, const Profile& profile);

// The agent's own, as agentFilterAsOciJson().
CompiledProfile compileAgentProfile();
// For sandboxes whose programs are explained: asks where that refuses
// (seccomp_asking.h), since nobody is asked about what it refuses.
CompiledProfile compileAskingAgentProfile();

// cordon-copier's.
CompiledProfile compileCopierProfile();

// The agent's own filter as the `linux.seccomp` object of an OCI configuration
// (JSON text): the default profile plus what vm-agent itself needs (clone3 for
// CLONE_INTO_CGROUP, setting RLIMIT_CORE).
std::string agentFilterAsOciJson();

}  // namespace cordon::jailer
