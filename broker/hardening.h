// What the broker takes away from itself at start, for good. Everything it
// starts inherits it, so only what no descendant needs is taken away.
#pragma once
#include <kj/common.h>

#include <cstddef>
#include <string>
#include <vector>

namespace cordon::broker {

struct Reasoned {
  const char* name;    // "cap_sys_admin", "init_module"
  const char* reason;  // one line
};

// The capabilities that stay (where the broker had them), and what for.
kj::ArrayPtr<const Reasoned> keptCapabilities();
// Those that stay besides where the kernel asks for them of a runtime: permitted,
// so that a child of root has them after its exec, and never effective here.
kj::ArrayPtr<const Reasoned> runtimeCapabilities();
// The system calls that are gone (EPERM), and what they are.
kj::ArrayPtr<const Reasoned> refusedCalls();

struct Hardened {
  bool root = false;
  std::vector<std::string> capabilities;  // that are left
  std::vector<std::string> forRuntimes;   // of runtimeCapabilities: permitted alone
  std::vector<std::string> missing;       // of both lists: wanted and never had
  size_t refusedCalls = 0;
  // False: the hard RLIMIT_CORE was 0 already. A sandbox can then not be given
  // the limit of 1 that keeps a piped core_pattern from running.
  bool coreLimitUsable = true;
};

// As root: limits and keyring, capabilities, no_new_privs, dumpable, seccomp.
// Otherwise no_new_privs and dumpable alone. Once, before the first thread and
// the first child. Throws (kj) when a step fails: a broker that is half narrowed
// must not go on.
Hardened hardenBroker();

}  // namespace cordon::broker
