// A `start` message, checked against the configuration and copied.
#pragma once
#include <kj/common.h>

#include <cstdint>
#include <string>
#include <vector>

#include "ipc/guest.capnp.h"
#include "vm_agent/config.h"

namespace cordon::agent {

// argv or env: one block of NUL-terminated strings and pointers to them.
class StringBlock {
 public:
  void add(kj::ArrayPtr<const kj::byte> bytes);
  // NULL-terminated; valid until the next add().
  char* const* pointers();
  size_t size() const { return offsets_.size(); }
  const char* at(size_t i) const { return text_.data() + offsets_[i]; }

 private:
  std::vector<char> text_;
  std::vector<size_t> offsets_;
  std::vector<char*> pointers_;
};

struct ExecRequest {
  uint32_t exec = 0;
  StringBlock argv, env;
  std::string cwd;
  UserIds user;
  // 0 = no limit.
  uint64_t fileSizeBytes = 0;
  uint64_t files = 0;
  uint64_t cpuTimeMs = 0;
  uint64_t deadlineMs = 0;
  uint64_t outputBytes = 0;
  bool stdin = false;
  bool explain = false;

  // PATH of env, or the usual directories where env has none.
  const char* searchPath() const;
};

struct RequestResult {
  guest::FailStep step = guest::FailStep::REQUEST;
  int error = 0;  // 0: `request` is good
  ExecRequest request;
};

// EINVAL: malformed; E2BIG: too many or too long; EPERM: wider than a ceiling,
// or (step `user`) a user that is refused; ENOENT (step `user`): no such user;
// EOPNOTSUPP (step `seccomp`): no profile to explain.
RequestResult checkRequest(guest::Start::Reader start, const Config& config);

}  // namespace cordon::agent
