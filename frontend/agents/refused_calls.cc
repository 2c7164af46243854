#include "frontend/agents/refused_calls.h"

#include <errno.h>
#include <linux/audit.h>
#include <seccomp.h>
#include <stdlib.h>

#include <algorithm>
#include <string>
#include <utility>

#include "jailer/seccomp_answer.h"

namespace cordon::agents {
namespace {

constexpr uint32_t kLargestErrno = 4095;

std::string nameOf(size_t number) {
  std::unique_ptr<char, decltype(&free)> name(
      seccomp_syscall_resolve_num_arch(SCMP_ARCH_X86_64, static_cast<int>(number)), &free);
  return name != nullptr ? name.get() : "call " + std::to_string(number);
}

}  // namespace

int RefusedCalls::answerTo(const seccomp_data& call) {
  uint32_t answer = jailer::answerOf(*profile_, call);
  uint32_t error = answer & SECCOMP_RET_DATA;
  if ((answer & SECCOMP_RET_ACTION_FULL) == SECCOMP_RET_ERRNO && error > 0 &&
      error <= kLargestErrno) {
    return static_cast<int>(error);
  }
  strange_ = true;
  return EPERM;
}

void RefusedCalls::count(const seccomp_data& call) {
  auto number = static_cast<uint32_t>(call.nr);
  bool known = call.arch == AUDIT_ARCH_X86_64 && number < kNumbers;
  ++(known ? counts_[number] : others_);
}

void RefusedCalls::list(v1::Explanation& out) const {
  std::vector<std::pair<std::string, uint64_t>> found;
  for (size_t number = 0; number < kNumbers; ++number) {
    if (counts_[number] > 0) found.emplace_back(nameOf(number), counts_[number]);
  }
  if (others_ > 0) found.emplace_back("calls with numbers from 1024 on", others_);
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) {
    return a.second != b.second ? a.second > b.second : a.first < b.first;
  });
  for (auto& [name, count] : found) {
    auto& call = *out.add_refused_calls();
    call.set_name(name);
    call.set_count(count);
  }
}

}  // namespace cordon::agents
