// What a runtime is going to mount, as data: shown beside what the kernel says is
// mounted (docs/card.md), and compared with it in tests.
#pragma once
#include <string>
#include <vector>

namespace cordon::runtimes {

struct PlannedMount {
  std::string what;   // "image host-usr", "tmpfs", "host's /dev/null", "the same again"
  std::string where;  // absolute, inside
  // "ro" or "rw", then those of nosuid, nodev and noexec that it is sure to
  // have: "ro,nosuid,nodev". The kernel may add to them what the source had.
  std::string flags;
};
using MountPlan = std::vector<PlannedMount>;

// "ro,nosuid,nodev,noexec" of those that are true.
std::string planFlags(bool readOnly, bool noSuid, bool noDev, bool noExec);

// The root and what is bound in it; `writable`: with overlays.
struct Image;
MountPlan imagePlan(const Image& image, bool writable);

// What is at an absolute path of the host's /proc or /sys, which a sandbox's own
// has at the same place: decides how it is masked.
enum class KernelPath { kAbsent, kFile, kDirectory };
KernelPath lookUp(const std::string& path);

}  // namespace cordon::runtimes
