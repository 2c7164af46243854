// A filter that asks where another answers with an errno.
//
// For vm-agent as well, which has neither libseccomp nor the profiles: header
// only.
#pragma once
#include <linux/filter.h>
#include <linux/seccomp.h>

#include <vector>

namespace cordon::jailer {

// Who is asked is the listener of the filter (seccomp_unotify(2)); where there
// is none the call fails with ENOSYS. What passes and what kills stays as it is.
//
// What asks is weaker than what refuses: of two filters that ask the one loaded
// last decides, so whoever can load one with a listener of its own can have a
// call continued. What refuses with an errno wins over all that ask.
inline void askInsteadOfRefusing(std::vector<sock_filter>& program) {
  for (sock_filter& instruction : program) {
    bool refuses = instruction.code == (BPF_RET | BPF_K) &&
                   (instruction.k & SECCOMP_RET_ACTION_FULL) == SECCOMP_RET_ERRNO;
    if (refuses) instruction.k = SECCOMP_RET_USER_NOTIF;
  }
}

}  // namespace cordon::jailer
