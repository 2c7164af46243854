// The profiles as data: what is allowed, with a reason for each group, and what
// is known and refused, with a reason as well. seccomp.cc compiles them,
// seccomp_oci.cc writes them for an OCI runtime.
#pragma once
#include <errno.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cordon::jailer {

// (argument `index` & mask) == value
struct ArgMatch {
  unsigned index;
  uint64_t mask;
  uint64_t value;
};

// For arguments that the kernel takes as 32 bits: without the mask a caller
// could set high bits that the kernel ignores and slip past the comparison.
constexpr uint64_t kLow32 = 0xffffffff;
constexpr uint64_t kAll64 = ~uint64_t{0};

// CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET}. CLONE_NEWTIME shares its bit with
// the exit signal and so is not a flag of clone(2).
constexpr uint64_t kCloneNamespaceFlags = 0x7E020000;

struct SyscallGroup {
  const char* reason;
  std::vector<const char*> calls;
  // Empty: allowed with any arguments. Else: allowed when one of these holds.
  std::vector<ArgMatch> whenAnyOf = {};
  // What a group of `absent` answers.
  int error = ENOSYS;
};

// A second argument that must be so as well, by its low 32 bits.
struct AlsoArgument {
  int index = -1;  // -1 = none
  uint32_t mask = 0;
  uint32_t value = 0;
  bool differs = false;  // (argument & mask) is not `value`
};

// An argument value of an otherwise allowed call that answers EPERM.
struct RefusedArgument {
  const char* reason;
  const char* call;
  unsigned index;
  uint32_t value;  // compared with the argument's low 32 bits
  // An argument that makes the call harmless when it is 0; -1 = none.
  int unlessZero = -1;
  AlsoArgument also = {};
};

// Of `default` and `build`: tracers that nothing can kill, memory and code that
// no limit of the sandbox counts. Those of calls that a profile doesn't let
// through mean nothing there.
std::vector<RefusedArgument> refusedToEverybody();

struct Profile {
  std::vector<SyscallGroup> allowed;
  std::vector<RefusedArgument> refusedArguments;  // looked at before `allowed`
  // Not there (ENOSYS, or as `error` says): callers fall back to something else.
  std::vector<SyscallGroup> absent;
  // EPERM, as everything else that is not listed. Listed for the reader and for
  // the test that no call of this architecture was overlooked.
  std::vector<SyscallGroup> refused;

  // With some arguments at least.
  bool allows(std::string_view call) const;
};

// In the order in which they are shown.
const std::vector<std::string>& profileNames();
// Throws for a name that profileNames() has not.
Profile profileNamed(std::string_view name);

Profile defaultProfile();
// For CPython with its standard library and bash with everyday coreutils.
Profile tunedProfile();
// gcc, git, tar, make, asyncio and multiprocessing besides.
Profile buildProfile();
// A superset of the default: filters intersect, and every workload inherits it.
Profile agentProfile();

// cordon-copier's own.
Profile copierProfile();

// The profile with this call taken out of every list: it answers EPERM.
Profile without(Profile profile, std::string_view call);

}  // namespace cordon::jailer
