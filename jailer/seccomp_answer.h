// What a profile's program answers to one call, worked out in user space.
//
// Used where the kernel asks instead of answering (`explain`): the answer has
// to be the one that the program would have got without being asked about.
#pragma once
#include <linux/filter.h>
#include <linux/seccomp.h>

#include <cstdint>
#include <vector>

#include "jailer/seccomp.h"

namespace cordon::jailer {

// The instructions of a compiled profile.
std::vector<sock_filter> programOf(const CompiledProfile& profile);

// SECCOMP_RET_…, with its data, as the kernel's interpreter comes to it. Knows
// the instructions that the profiles are made of; another one, and a jump or a
// load out of bounds, answers SECCOMP_RET_KILL_PROCESS. `data` may hold
// anything.
uint32_t answerOf(const std::vector<sock_filter>& program, const seccomp_data& data);

}  // namespace cordon::jailer
