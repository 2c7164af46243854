// The control socket from the broker to vm-agent (the agent's fd 0).
//
// A SOCK_SEQPACKET unix socketpair. The broker only ever sends on it and never
// blocks; the agent only ever receives. One datagram is a ControlHeader, for
// `config` followed by one flat capnp AgentConfig (guest.capnp), with the
// named fds as SCM_RIGHTS. EOF means that the supervisor is gone: the agent
// kills everything and exits.
#pragma once
#include <cstddef>
#include <cstdint>

namespace cordon::ipc {

enum class ControlKind : uint32_t {
  // First datagram, exactly once. fds: none, or [0] = the workload's seccomp
  // profile as raw BPF (struct sock_filter[]) in a sealed memfd, and maybe [1] =
  // likewise the agent's own, which it loads at once (else whoever started it did).
  kConfig = 1,
  // fds: [0] = one end of a SOCK_STREAM socketpair; the other end is a
  // frontend's. The agent greets with `hello`.
  kStream = 2,
  // A leaf for exec number `exec`, before its `start` can arrive.
  // JoinMode cgroupV1: fds [0] = the leaf's cgroup.procs, O_RDONLY (to list the
  // exec's processes), [1..] = `tasks` of each hierarchy, O_WRONLY.
  // JoinMode cgroupV2: fds [0] = the leaf as a detached read-only mount.
  // JoinMode subreaper: no fds.
  kExec = 3,
  // Forget exec `exec` (its leaf is gone): close its fds.
  kForget = 4,
};

struct ControlHeader {
  ControlKind kind;
  uint32_t exec;  // 0 unless kExec or kForget
};
static_assert(sizeof(ControlHeader) == 8);

constexpr size_t kMaxControlBytes = 64 * 1024;
constexpr size_t kMaxControlFds = 8;

}  // namespace cordon::ipc
