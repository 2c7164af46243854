// The agent's configuration, checked and copied out of its message.
#pragma once
#include <capnp/serialize.h>
#include <kj/array.h>
#include <kj/io.h>
#include <linux/filter.h>

#include <cstdint>
#include <string>
#include <vector>

#include "ipc/guest.capnp.h"
#include "vm_agent/users.h"

namespace cordon::agent {

struct Config {
  guest::JoinMode join = guest::JoinMode::SUBREAPER;
  bool switchUser = false;
  UserIds defaultUser;
  uint32_t agentUid = 0;
  std::string workDir;
  std::vector<std::string> scratch;
  uint32_t maxExecs = 0;
  // Ceilings: 0 = none.
  uint64_t fileSizeBytes = 0;
  uint64_t files = 0;
  uint64_t cpuTimeMs = 0;
  uint64_t deadlineMs = 0;
  uint64_t outputBytes = 0;
  // For every child: 0 = none.
  uint64_t dataBytes = 0;
  uint64_t processes = 0;
  // The workload's seccomp profile; empty = none. Read once, so that no child
  // depends on a descriptor.
  std::vector<sock_filter> filter;
};

// `filter` for an explained program: it asks the listener that comes with it
// wherever `filter` refuses. A second listener, which could let calls continue
// once the first is closed, is refused with EBUSY for good.
std::vector<sock_filter> askingFilter(std::vector<sock_filter> filter);

// A file of BPF. Throws when it is none.
std::vector<sock_filter> readFilter(int fd);

// `payload` is an AgentConfig message, `profile` null or a file of BPF. Throws
// when either is malformed or says what can't be done.
Config readConfig(kj::ArrayPtr<const kj::byte> payload, const kj::AutoCloseFd* profile);

}  // namespace cordon::agent
