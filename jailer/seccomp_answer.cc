#include "jailer/seccomp_answer.h"

#include <kj/debug.h>
#include <unistd.h>

#include <cstring>

namespace cordon::jailer {

std::vector<sock_filter> programOf(const CompiledProfile& profile) {
  std::vector<sock_filter> program(profile.instructions);
  size_t bytes = program.size() * sizeof(sock_filter);
  ssize_t got;
  KJ_SYSCALL(got = pread(profile.bpf, program.data(), bytes, 0), "reading a profile");
  KJ_REQUIRE(static_cast<size_t>(got) == bytes, "short read of a profile");
  return program;
}

uint32_t answerOf(const std::vector<sock_filter>& program, const seccomp_data& data) {
  uint32_t accumulator = 0;
  // Jumps only go forward, so this ends.
  for (size_t at = 0; at < program.size(); ++at) {
    const sock_filter& now = program[at];
    auto jump = [&](bool yes) { at += yes ? now.jt : now.jf; };
    switch (now.code) {
      case BPF_LD | BPF_W | BPF_ABS:
        if (now.k > sizeof(data) - sizeof(accumulator)) return SECCOMP_RET_KILL_PROCESS;
        memcpy(&accumulator, reinterpret_cast<const char*>(&data) + now.k, sizeof(accumulator));
        break;
      case BPF_ALU | BPF_AND | BPF_K:
        accumulator &= now.k;
        break;
      case BPF_JMP | BPF_JA:
        at += now.k;
        break;
      case BPF_JMP | BPF_JEQ | BPF_K:
        jump(accumulator == now.k);
        break;
      case BPF_JMP | BPF_JGT | BPF_K:
        jump(accumulator > now.k);
        break;
      case BPF_JMP | BPF_JGE | BPF_K:
        jump(accumulator >= now.k);
        break;
      case BPF_RET | BPF_K:
        return now.k;
      default:
        return SECCOMP_RET_KILL_PROCESS;
    }
  }
  return SECCOMP_RET_KILL_PROCESS;
}

}  // namespace cordon::jailer
