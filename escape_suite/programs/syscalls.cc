// System calls with a long record of kernel bugs, and other ways to enter the
// kernel than the one the filter was written for.
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/io_uring.h>
#include <linux/keyctl.h>
#include <linux/perf_event.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>

#include "escape_suite/programs/program.h"

namespace cordon::escape_programs {
namespace {

int closing(long fd) {
  int error = errorOf(fd);
  if (fd >= 0) close(static_cast<int>(fd));
  return error;
}

int perf(unsigned type, unsigned long long config, pid_t pid, int cpu) {
  perf_event_attr attributes{};
  attributes.size = sizeof(attributes);
  attributes.type = type;
  attributes.config = config;
  attributes.exclude_kernel = 1;
  return closing(syscall(SYS_perf_event_open, &attributes, pid, cpu, -1, 0));
}

#ifdef __x86_64__
constexpr long kX32Bit = 0x40000000;

int callX32() {
  long pid = syscall(kX32Bit | SYS_getpid);
  if (pid == getpid()) return 0;
  return pid < 0 ? errno : EPROTO;
}

int call32() {
  long pid = -1;
  // getpid of the 32-bit table.
  asm volatile("int $0x80" : "=a"(pid) : "0"(20L) : "memory", "r8", "r9", "r10", "r11");
  int answer = static_cast<int>(pid);
  if (answer == getpid()) return 0;
  return answer < 0 ? -answer : EPROTO;
}
#endif

}  // namespace

void ioUring(const Arguments&) {
  io_uring_params parameters{};
  tried("setup", closing(syscall(SYS_io_uring_setup, 4, &parameters)));
  // A descriptor that is none: past the gate it would be EBADF.
  gated("enter", errorOf(syscall(SYS_io_uring_enter, -1, 0, 0, 0, nullptr, 0)));
  gated("register", errorOf(syscall(SYS_io_uring_register, -1, 0, nullptr, 0)));
}

void bpf(const Arguments&) {
  bpf_attr map{};
  map.map_type = BPF_MAP_TYPE_ARRAY;
  map.key_size = 4;
  map.value_size = 8;
  map.max_entries = 1;
  tried("map_create", closing(syscall(SYS_bpf, BPF_MAP_CREATE, &map, sizeof(map))));
  bpf_insn program[] = {
      {.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 0, .src_reg = 0, .off = 0, .imm = 0},
      {.code = BPF_JMP | BPF_EXIT, .dst_reg = 0, .src_reg = 0, .off = 0, .imm = 0}};
  char license[] = "GPL";
  bpf_attr load{};
  load.prog_type = BPF_PROG_TYPE_SOCKET_FILTER;
  load.insn_cnt = 2;
  load.insns = reinterpret_cast<unsigned long long>(program);
  load.license = reinterpret_cast<unsigned long long>(license);
  tried("prog_load", closing(syscall(SYS_bpf, BPF_PROG_LOAD, &load, sizeof(load))));
  bpf_attr next{};
  gated("next_id", errorOf(syscall(SYS_bpf, BPF_PROG_GET_NEXT_ID, &next, sizeof(next))));
}

void userfaultfd(const Arguments&) {
  constexpr int kUserModeOnly = 1;
  tried("full", closing(syscall(SYS_userfaultfd, O_CLOEXEC)));
  tried("user_mode", closing(syscall(SYS_userfaultfd, O_CLOEXEC | kUserModeOnly)));
  int fd = open("/dev/userfaultfd", O_RDWR | O_CLOEXEC);
  tried("device", closing(fd));
}

void keyctl(const Arguments&) {
  tried("session_keyring",
        errorOf(syscall(SYS_keyctl, KEYCTL_GET_KEYRING_ID, KEY_SPEC_SESSION_KEYRING, 0)));
  tried("user_keyring",
        errorOf(syscall(SYS_keyctl, KEYCTL_GET_KEYRING_ID, KEY_SPEC_USER_KEYRING, 0)));
  tried("add_key",
        errorOf(syscall(SYS_add_key, "user", "cordon-escape", "x", 1UL, KEY_SPEC_PROCESS_KEYRING)));
  gated("request_key", errorOf(syscall(SYS_request_key, "user", "cordon-no-such-key", nullptr, 0)));
}

void perfEventOpen(const Arguments&) {
  tried("own", perf(PERF_TYPE_SOFTWARE, PERF_COUNT_SW_CPU_CLOCK, 0, -1));
  tried("whole_cpu", perf(PERF_TYPE_SOFTWARE, PERF_COUNT_SW_CPU_CLOCK, -1, 0));
  tried("cycles", perf(PERF_TYPE_HARDWARE, PERF_COUNT_HW_CPU_CYCLES, 0, -1));
}

void foreignAbi(const Arguments&) {
#ifdef __x86_64__
  tried("x32", inChild(callX32));
  tried("ia32", inChild(call32));
#else
  report({{"not_this_architecture", 1}});
#endif
}

}  // namespace cordon::escape_programs
