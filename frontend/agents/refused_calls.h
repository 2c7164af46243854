// The refused calls of an explained exec: what each is answered, and how many
// there were of which.
//
// Everything about a call is chosen by the program that made it, so numbers
// outside of the table share one entry and the memory is fixed. Not
// thread-safe.
#pragma once
#include <linux/filter.h>
#include <linux/seccomp.h>

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "ipc/agent.pb.h"

namespace cordon::agents {

using Program = std::shared_ptr<const std::vector<sock_filter>>;

class RefusedCalls {
 public:
  // `profile`: the program that answers where nobody is asked.
  explicit RefusedCalls(Program profile) : profile_(std::move(profile)) {}

  // The errno that the profile has for this call; EPERM, and strange() from then
  // on, where it would not refuse it: such a call is never let through here.
  int answerTo(const seccomp_data& call);
  // It was answered.
  void count(const seccomp_data& call);

  // A filter of ours never asks about such a call: the sandbox has another.
  bool strange() const { return strange_; }
  // The most frequent first, equals by name.
  void list(v1::Explanation& out) const;

 private:
  static constexpr size_t kNumbers = 1024;  // past every call there is

  Program profile_;
  std::array<uint64_t, kNumbers> counts_{};
  uint64_t others_ = 0;
  bool strange_ = false;
};

}  // namespace cordon::agents
