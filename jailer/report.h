// What the broker and cordon-jailer agree on beside the spec: descriptor
// numbers, and the records that come back on the status socket.
#pragma once
#include <array>
#include <cstdint>

namespace cordon::jailer {

// Descriptors that the jailer is started with. 1 and 2 are /dev/null.
constexpr int kControlFd = 0;      // becomes the agent's fd 0
constexpr int kSpecFd = 3;         // sealed memfd, jail.capnp
constexpr int kStatusFd = 4;       // our end of the status socket (SOCK_SEQPACKET)
constexpr int kRootFd = 5;         // detached mount: the image's tree
constexpr int kAgentFd = 6;        // sealed memfd: the program, vm-agent or cordon-copier
constexpr int kFilterFd = 7;       // sealed memfd: its filter, struct sock_filter[]
constexpr int kFirstCgroupFd = 8;  // see JailSpec.cgroupFds
constexpr int kMostCgroupFds = 8;
// What the program is given besides, see JailSpec.extraFds.
constexpr int kFirstExtraFd = kFirstCgroupFd + kMostCgroupFds;
constexpr int kMostExtraFds = 8;

// The nodes of the host's /dev that a sandbox may have.
constexpr const char* kDevices[] = {"null", "zero", "full", "random", "urandom", "tty"};

// The pipeline's steps, in order.
enum class Step : uint32_t {
  kDescriptors = 1,
  kSpec,
  kCgroup,
  kUserNamespace,
  kNamespaces,
  kOwners,
  kMounts,
  kHostname,
  kPivot,
  kLimits,
  kIdentity,
  kFilter,
  kExec,
};

constexpr uint32_t kSteps = static_cast<uint32_t>(Step::kExec) + 1;

constexpr const char* stepName(Step step) {
  constexpr const char* kNames[] = {
      "?",      "descriptors", "spec",  "cgroup", "user namespace", "namespaces", "owners",
      "mounts", "hostname",    "pivot", "limits", "identity",       "filter",     "exec"};
  auto index = static_cast<uint32_t>(step);
  return kNames[index < sizeof(kNames) / sizeof(*kNames) ? index : 0];
}

// Names below /proc/PID/ns, in this order in Report::namespaces.
inline constexpr std::array<const char*, 7> kNamespaces = {"user", "mnt", "pid",   "net",
                                                           "ipc",  "uts", "cgroup"};

// One message each. kBorn (which kLayers may overtake), then kLayers where the
// program is vm-agent, and either kFailed or kDone and, when the program runs, the
// end of the socket (it is CLOEXEC).
struct Report {
  static constexpr uint32_t kMagic = 0x6a61696c;
  enum Kind : uint32_t { kBorn = 1, kFailed = 2, kDone = 3, kLayers = 4 };
  uint32_t magic = kMagic;
  uint32_t kind = 0;
  int32_t pid = 0;      // kBorn: the sandbox's init, a child of the jailer's parent
  uint32_t step = 0;    // kFailed
  int32_t error = 0;    // kFailed: errno
  uint32_t detail = 0;  // kFailed in kMounts, kOwners: which of the list, from 0
  // kDone: when each step had been done, in CLOCK_MONOTONIC's nanoseconds; [0]
  // when the jailer began.
  uint64_t ends[kSteps] = {};
  std::array<uint64_t, kNamespaces.size()> namespaces = {};  // kDone: inode numbers
  uint64_t coreCookie = 0;  // kDone: of the init, as the kernel told it; 0 = none was asked for
};

// The descriptors that come with kLayers, in order: detached mounts of what the sandbox can
// write, nothing else mounted in them. The last three where the root is writable:
// the root as it is seen inside, its lower layers, and the tmpfs with the upper
// layers (u0, u1, … as in JailSpec.image).
enum LayerFd : uint32_t { kWorkLayer, kTmpLayer, kMergedLayer, kLowerLayer, kUpperLayer };
constexpr uint32_t kReadOnlyRootLayers = 2;
constexpr uint32_t kWritableRootLayers = 5;

}  // namespace cordon::jailer
