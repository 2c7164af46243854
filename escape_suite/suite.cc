#include "escape_suite/suite.h"

#include <algorithm>

namespace cordon::escape {
namespace {

constexpr uint64_t kMiB = 1 << 20;
using Strings = std::vector<std::string>;

// Small enough to be hit soon, large enough that a row's own limit comes first.
constexpr RowLimits usual() {
  RowLimits limits;
  limits.memoryBytes = 128 * kMiB;
  limits.pids = 64;
  limits.cpuTimeMs = 20'000;
  limits.wallMs = 30'000;
  limits.fileSizeBytes = 16 * kMiB;
  limits.files = 256;
  limits.diskBytes = 16 * kMiB;
  limits.tmpBytes = 8 * kMiB;
  limits.shmBytes = 8 * kMiB;
  limits.outputBytes = kMiB;
  return limits;
}

constexpr RowLimits with(uint64_t RowLimits::*field, uint64_t value) {
  RowLimits limits = usual();
  limits.*field = value;
  return limits;
}

// 200 MB must meet the file size limit and nothing else first.
constexpr RowLimits forBigFile() {
  RowLimits limits = usual();
  limits.memoryBytes = 256 * kMiB;
  limits.diskBytes = 64 * kMiB;
  limits.fileSizeBytes = 32 * kMiB;
  return limits;
}

std::string text(uint64_t value) {
  return std::to_string(value);
}

Strings nothing(const RowLimits&, const Places&) {
  return {};
}
Strings connectArguments(const RowLimits&, const Places& places) {
  Strings all{std::to_string(places.tcpPort), places.abstractName,
              std::to_string(places.vsockPort)};
  all.insert(all.end(), places.addresses.begin(), places.addresses.end());
  return all;
}
Strings fileArguments(const RowLimits&, const Places& places) {
  return places.files;
}
Strings gigabyte(const RowLimits&, const Places&) {
  return {text(1024 * kMiB)};
}
Strings halfTheMemory(const RowLimits& limits, const Places&) {
  return {text(limits.memoryBytes / 2)};
}
Strings cpuArguments(const RowLimits&, const Places&) {
  return {"30000"};
}
Strings sleepArguments(const RowLimits&, const Places&) {
  return {"60000"};
}
Strings fiveHundred(const RowLimits&, const Places&) {
  return {"500"};
}
Strings floodArguments(const RowLimits&, const Places&) {
  return {text(64 * kMiB)};
}
Strings bigFileArguments(const RowLimits&, const Places&) {
  return {text(200 * 1'000'000)};
}
Strings filesArguments(const RowLimits&, const Places&) {
  return {"200000"};
}
Strings nonceArgument(const RowLimits&, const Places& places) {
  return {places.nonce};
}
Strings tmpArguments(const RowLimits& limits, const Places&) {
  return {"/tmp", text(limits.tmpBytes * 8)};
}
Strings shmArguments(const RowLimits& limits, const Places&) {
  return {"/dev/shm", text(limits.shmBytes * 8)};
}
Strings inodesArguments(const RowLimits&, const Places&) {
  return {"300000"};
}
Strings shmSegments(const RowLimits& limits, const Places&) {
  return {text(limits.memoryBytes * 4)};
}
Strings mazeArguments(const RowLimits& limits, const Places&) {
  return {text(limits.fileSizeBytes)};
}

SuiteRow standard(const char* program, const char* aim,
                  Strings (*arguments)(const RowLimits&, const Places&) = nothing,
                  RowLimits limits = usual()) {
  SuiteRow row;
  row.program = program;
  row.aim = aim;
  row.limits = limits;
  row.arguments = arguments;
  return row;
}

SuiteRow extended(const char* program, const char* aim,
                  Strings (*arguments)(const RowLimits&, const Places&) = nothing,
                  RowLimits limits = usual()) {
  SuiteRow row = standard(program, aim, arguments, limits);
  row.extended = true;
  return row;
}

SuiteRow sandboxOnly(SuiteRow row) {
  row.sandboxOnly = true;
  return row;
}

SuiteRow factsOnStderr(SuiteRow row) {
  row.factsOnStderr = true;
  return row;
}

std::vector<SuiteRow> makeSuite() {
  return {
      standard("connect", "reach a listener on the host", connectArguments),
      standard("raw_socket", "open a raw or packet socket"),
      standard("write_outside", "write a file that the host sees", fileArguments),
      standard("read_shadow", "read /etc/shadow"),
      standard("mount", "mount, bind, remount, unmount, pivot_root"),
      standard("memory", "touch a gigabyte under a 128 MiB cap", gigabyte),
      standard("cpu", "burn 30 s of CPU time in four processes", cpuArguments,
               with(&RowLimits::cpuTimeMs, 1000)),
      standard("sleep", "sleep for a minute", sleepArguments, with(&RowLimits::wallMs, 1500)),
      standard("fork", "five hundred processes at once", fiveHundred),
      standard("three_children", "three children below the memory cap, together over it",
               halfTheMemory),
      factsOnStderr(standard("flood", "64 MiB of output under a 1 MiB cap", floodArguments)),
      standard("big_file", "a file of 200 MB", bigFileArguments, forBigFile()),
      standard("files", "descriptors without end", filesArguments, with(&RowLimits::files, 64)),

      extended("kill_all", "kill -9 -1"),
      extended("user_namespace", "new namespaces of every kind, and the agent's"),
      extended("ptrace_agent", "trace the agent"),
      extended("agent_memory", "read the agent's memory, environment, files, root"),
      extended("module_load", "load a kernel module or a kernel"),
      extended("mknod", "make device nodes"),
      extended("setuid_binary", "gain an id from a set-uid program"),
      extended("raise_rlimits", "raise its own limits"),
      extended("write_proc_sys", "write kernel settings"),
      extended("sysrq", "press SysRq"),
      extended("write_cgroup", "change its own cgroup"),
      extended("overwrite_agent_exe", "replace the agent's executable"),
      extended("inherited_fds", "find a descriptor that leads outside"),
      extended("daemon", "outlive the sandbox", nonceArgument),
      extended("fill_tmp", "fill /tmp", tmpArguments),
      extended("fill_shm", "fill /dev/shm", shmArguments),
      extended("core_rlimit", "have a core dumped"),
      extended("io_uring", "use io_uring"),
      extended("bpf", "load BPF"),
      extended("userfaultfd", "use userfaultfd"),
      extended("keyctl", "use the kernel's keyrings"),
      extended("perf_event_open", "use performance events"),
      extended("stop_agent", "stop, kill or starve the agent"),
      extended("steal_descriptors", "take descriptors from other processes"),
      extended("become_root", "change ids and raise capabilities"),
      extended("posture", "run without no_new_privs, filter or with capabilities"),
      extended("memfd_exec", "shed restrictions by running from memory"),
      extended("chroot", "break out by chroot"),
      extended("file_handles", "open files by handle"),
      extended("hard_links", "link root's files into the scratch"),
      sandboxOnly(extended("rename_mounts", "move or replace the sandbox's mount points")),
      extended("symlink_maze", "leave traps for the agent in the scratch", mazeArguments),
      sandboxOnly(extended("many_inodes", "300,000 empty files", inodesArguments)),
      extended("sysv_shm", "memory that outlives its process", shmSegments),
      extended("zombies", "five hundred processes that nobody waits for", fiveHundred),
      extended("devices", "open the machine's devices"),
      extended("system_wide", "clock, swap, accounting, reboot, hostname, kernel log"),
      extended("terminal", "type on somebody's terminal"),
      extended("netlink", "change a network interface"),
      extended("socket_scan", "find somebody's sockets"),
      extended("foreign_abi", "enter the kernel by x32 and ia32"),
  };
}

}  // namespace

const std::vector<SuiteRow>& suite() {
  static const std::vector<SuiteRow> rows = makeSuite();
  return rows;
}

const SuiteRow* findRow(std::string_view program) {
  auto found = std::find_if(suite().begin(), suite().end(),
                            [&](const SuiteRow& row) { return row.program == program; });
  return found == suite().end() ? nullptr : &*found;
}

}  // namespace cordon::escape
