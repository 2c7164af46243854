// Limits that are only ever lowered. System calls alone.
#pragma once
#include <sys/resource.h>

namespace cordon::jailer {

// Soft and hard, and never above the hard limit that there is. False, with errno.
inline bool lowerLimit(__rlimit_resource resource, rlim_t most) {
  rlimit limit;
  if (getrlimit(resource, &limit) != 0) return false;
  limit.rlim_max = most < limit.rlim_max ? most : limit.rlim_max;
  limit.rlim_cur = limit.rlim_max;
  return setrlimit(resource, &limit) == 0;
}

// 1 is the kernel's own "no dump, and no helper": 0 is not honoured by a piped
// core_pattern.
inline bool refuseCores() {
  return lowerLimit(RLIMIT_CORE, 1);
}

}  // namespace cordon::jailer
