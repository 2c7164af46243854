// A seccomp profile as the broker deals with it: compiled, and counted.
#pragma once
#include <cstdint>
#include <string>

namespace cordon::broker {

struct WorkloadProfile {
  std::string name;
  int bpf = -1;        // a sealed memfd with the filter; not ours to close
  uint32_t calls = 0;  // that pass, at least for some arguments
  uint32_t known = 0;  // of so many that this architecture has
};

}  // namespace cordon::broker
