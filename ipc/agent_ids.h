// The ids of vm-agent inside every sandbox. High ones, so that root and the usual
// accounts stay free for the workload, which never has them.
#pragma once
#include <cstdint>

namespace cordon::ipc {

constexpr uint32_t kAgentUid = 65000;
constexpr uint32_t kAgentGid = 65000;

}  // namespace cordon::ipc
