#include "vm_agent/config.h"

#include <kj/debug.h>
#include <linux/audit.h>
#include <linux/seccomp.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <iterator>

#include "ipc/control.h"
#include "ipc/framing.h"
#include "jailer/seccomp_asking.h"

namespace cordon::agent {

namespace {

constexpr uint32_t kMaxExecs = 64;
constexpr uint32_t kMaxScratch = 8;
constexpr size_t kMaxPath = 4095;

std::string path(capnp::Text::Reader text) {
  KJ_REQUIRE(text.size() <= kMaxPath && text.startsWith("/"), "not an absolute path");
  KJ_REQUIRE(strlen(text.cStr()) == text.size(), "NUL in a path");
  return text.cStr();
}

}  // namespace

std::vector<sock_filter> readFilter(int fd) {
  struct stat info;
  KJ_SYSCALL(fstat(fd, &info), "seccomp profile");
  auto bytes = static_cast<size_t>(info.st_size);
  KJ_REQUIRE(S_ISREG(info.st_mode) && bytes > 0 && bytes % sizeof(sock_filter) == 0 &&
                 bytes / sizeof(sock_filter) <= BPF_MAXINSNS,
             "not a BPF program", bytes);
  std::vector<sock_filter> filter(bytes / sizeof(sock_filter));
  ssize_t got;
  KJ_SYSCALL(got = pread(fd, filter.data(), bytes, 0), "seccomp profile");
  KJ_REQUIRE(static_cast<size_t>(got) == bytes, "seccomp profile is truncated");
  return filter;
}

std::vector<sock_filter> askingFilter(std::vector<sock_filter> filter) {
  jailer::askInsteadOfRefusing(filter);
  // As the kernel does while the first listener is open.
  const sock_filter oneListener[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, arch)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 0, 5),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_seccomp, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[1])),
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, SECCOMP_FILTER_FLAG_NEW_LISTENER, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EBUSY),
  };
  filter.insert(filter.begin(), std::begin(oneListener), std::end(oneListener));
  return filter;
}

Config readConfig(kj::ArrayPtr<const kj::byte> payload, const kj::AutoCloseFd* profile) {
  KJ_REQUIRE(payload.size() > 0 && payload.size() % sizeof(capnp::word) == 0,
             "AgentConfig is not a whole number of words");
  // The datagram's buffer need not be aligned.
  auto words = kj::heapArray<capnp::word>(payload.size() / sizeof(capnp::word));
  memcpy(words.asBytes().begin(), payload.begin(), payload.size());
  capnp::FlatArrayMessageReader message(words, ipc::readerOptions(ipc::kMaxControlBytes));
  auto in = message.getRoot<guest::AgentConfig>();

  Config config;
  config.join = in.getJoin();
  switch (config.join) {
    case guest::JoinMode::SUBREAPER:
    case guest::JoinMode::CGROUP_V1:
    case guest::JoinMode::CGROUP_V2:
      break;
    default:
      KJ_FAIL_REQUIRE("unknown join mode");
  }
  config.switchUser = in.getSwitchUser();
  config.defaultUser = {in.getDefaultUid(), in.getDefaultGid()};
  config.agentUid = in.getAgentUid();
  config.workDir = path(in.getWorkDir());
  KJ_REQUIRE(in.getScratch().size() <= kMaxScratch, "too many scratch mounts");
  for (auto mount : in.getScratch()) config.scratch.push_back(path(mount));
  config.maxExecs = in.getMaxExecs();
  KJ_REQUIRE(config.maxExecs >= 1 && config.maxExecs <= kMaxExecs, "maxExecs", config.maxExecs);
  config.fileSizeBytes = in.getFileSizeBytes();
  config.files = in.getFiles();
  config.cpuTimeMs = in.getCpuTimeMs();
  config.deadlineMs = in.getDeadlineMs();
  config.outputBytes = in.getOutputBytes();
  config.dataBytes = in.getDataBytes();
  config.processes = in.getProcesses();
  if (profile != nullptr) config.filter = readFilter(*profile);
  return config;
}

}  // namespace cordon::agent
