// The profiles as data: what is allowed, with a reason for each group, and what
// is known and refused, with a reason as well. seccomp.cc compiles them,
// seccomp_oci.cc writes them for an OCI runtime.
#pragma once
#include <cstdint>
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

struct SyscallGroup {
  const char* reason;
  std::vector<const char*> calls;
  // Empty: allowed with any arguments. Else: allowed when one of these holds.
  std::vector<ArgMatch> whenAnyOf = {};
};

// An argument value of an otherwise allowed call that answers EPERM.
struct RefusedArgument {
  const char* reason;
  const char* call;
  unsigned index;
  uint32_t value;  // compared with the argument's low 32 bits
};

struct Profile {
  std::vector<SyscallGroup> allowed;
  std::vector<RefusedArgument> refusedArguments;  // looked at before `allowed`
  // ENOSYS: callers fall back to something older.
  std::vector<SyscallGroup> absent;
  // EPERM, as everything else that is not listed. Listed for the reader and for
  // the test that no call of this architecture was overlooked.
  std::vector<SyscallGroup> refused;
};

Profile defaultProfile();
// A superset of the default: filters intersect, and every workload inherits it.
Profile agentProfile();

}  // namespace cordon::jailer
