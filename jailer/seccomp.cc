#include "jailer/seccomp.h"

#include <errno.h>
#include <fcntl.h>
#include <kj/debug.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <seccomp.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <vector>

#include "jailer/seccomp_answer.h"
#include "jailer/seccomp_asking.h"
#include "jailer/seccomp_profile.h"

#ifndef __x86_64__
#error "the profiles name the calls of x86-64 and its x32 and ia32 entry points"
#endif

namespace cordon::jailer {

namespace {

using Filter = std::unique_ptr<void, decltype(&seccomp_release)>;
using Program = std::vector<sock_filter>;

constexpr uint32_t kX32Bit = 0x40000000;
// x86-64 left these numbers out when all architectures agreed on their next ones.
constexpr uint32_t kFirstUnused = 335, kLastUnused = 423;
constexpr uint32_t kNoCall = 0xffffffff;  // what a tracer puts to skip a call
constexpr uint32_t kEnosys = SECCOMP_RET_ERRNO | ENOSYS;
constexpr uint32_t kEperm = SECCOMP_RET_ERRNO | EPERM;

int numberOf(const char* call) {
  int number = seccomp_syscall_resolve_name_arch(SCMP_ARCH_X86_64, call);
  KJ_REQUIRE(number >= 0, "libseccomp does not know this call", call);
  return number;
}

void addRule(const Filter& filter, uint32_t action, int number) {
  int result = seccomp_rule_add_exact_array(filter.get(), action, number, 0, nullptr);
  if (result < 0) KJ_FAIL_SYSCALL("seccomp_rule_add_exact_array", -result, number);
}

void setAttribute(const Filter& filter, scmp_filter_attr attribute, uint32_t value) {
  int result = seccomp_attr_set(filter.get(), attribute, value);
  if (result < 0) KJ_FAIL_SYSCALL("seccomp_attr_set", -result, static_cast<int>(attribute));
}

kj::AutoCloseFd makeMemfd(const char* name) {
  int fd;
  KJ_SYSCALL(fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING), name);
  return kj::AutoCloseFd(fd);
}

Program exportProgram(const Filter& filter) {
  kj::AutoCloseFd file = makeMemfd("seccomp-export");
  int result = seccomp_export_bpf(filter.get(), file);
  if (result < 0) KJ_FAIL_SYSCALL("seccomp_export_bpf", -result);
  struct stat status;
  KJ_SYSCALL(fstat(file, &status));
  Program program(static_cast<size_t>(status.st_size) / sizeof(sock_filter));
  size_t bytes = program.size() * sizeof(sock_filter);
  ssize_t got;
  KJ_SYSCALL(got = pread(file, program.data(), bytes, 0));
  KJ_ASSERT(static_cast<size_t>(got) == bytes, "short read of a memfd");
  return program;
}

// Of the calls that were known when `default` was written. It lists them all.
int highestNumber() {
  int highest = 0;
  Profile known = defaultProfile();
  for (const auto* groups : {&known.allowed, &known.absent, &known.refused}) {
    for (const SyscallGroup& group : *groups) {
      for (const char* call : group.calls) highest = std::max(highest, numberOf(call));
    }
  }
  return highest;
}

// What each number from 0 to the highest answers. Calls with argument rules
// never get here: the prelude has decided on them.
std::vector<uint32_t> answersOf(const Profile& profile) {
  std::vector<uint32_t> answers(static_cast<size_t>(highestNumber()) + 1, SCMP_ACT_ERRNO(EPERM));
  auto set = [&](const SyscallGroup& group, uint32_t answer) {
    for (const char* call : group.calls) answers[static_cast<size_t>(numberOf(call))] = answer;
  };
  for (const SyscallGroup& group : profile.allowed) set(group, SCMP_ACT_ALLOW);
  for (const SyscallGroup& group : profile.absent) {
    set(group, SCMP_ACT_ERRNO(static_cast<uint32_t>(group.error)));
  }
  return answers;
}

bool isUnused(size_t number) {
  return number >= kFirstUnused && number <= kLastUnused;
}

// Rules only for what differs from the commonest answer: a long allow-list is
// short as the list of what it refuses. Either way each number up to the highest
// is decided on here by `answers`, and those above it by the prelude.
Program compileNumbers(const std::vector<uint32_t>& answers) {
  size_t allowed = 0, refused = 0;
  for (size_t number = 0; number < answers.size(); ++number) {
    if (isUnused(number)) continue;
    if (answers[number] == SCMP_ACT_ALLOW) ++allowed;
    if (answers[number] == SCMP_ACT_ERRNO(EPERM)) ++refused;
  }
  uint32_t commonest = allowed > refused ? SCMP_ACT_ALLOW : SCMP_ACT_ERRNO(EPERM);
  Filter filter(seccomp_init(commonest), &seccomp_release);
  KJ_REQUIRE(filter != nullptr, "seccomp_init failed");
  // x32 and ia32 number their calls differently: whoever enters there means to
  // get round the list.
  setAttribute(filter, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_KILL_PROCESS);
  setAttribute(filter, SCMP_FLTATR_CTL_OPTIMIZE, 2);  // a tree: three times cheaper to load
  for (size_t number = 0; number < answers.size(); ++number) {
    if (isUnused(number) || answers[number] == commonest) continue;
    addRule(filter, answers[number], static_cast<int>(number));
  }
  return exportProgram(filter);
}

// What libseccomp's rules can't say, or say at length, put in front of its
// program: ENOSYS for numbers that are no call, and the calls with argument
// rules. Jumps in BPF are relative, so the program behind it stays as it is.
class Prelude {
 public:
  Program build(const Profile& profile) {
    load(offsetof(seccomp_data, arch));
    unlessEqual(AUDIT_ARCH_X86_64, kEnd);
    load(offsetof(seccomp_data, nr));
    jumpIf(BPF_JEQ, kNoCall, kRetEnosys);
    jumpIf(BPF_JGE, kX32Bit, kEnd);
    jumpIf(BPF_JGT, static_cast<uint32_t>(highestNumber()), kRetEnosys);
    // Two jumps here save the rules behind one for each number.
    unlessAtLeast(kFirstUnused, kNextCheck);
    jumpIf(BPF_JGT, kLastUnused, kNextCheck);
    jump(kRetEnosys);
    place(kNextCheck);
    for (const RefusedArgument& refused : profile.refusedArguments) refuse(refused);
    for (const SyscallGroup& group : profile.allowed) {
      if (group.whenAnyOf.empty()) continue;
      for (const char* call : group.calls) allow(call, group.whenAnyOf);
    }
    jump(kEnd);
    place(kRetEnosys);
    ret(kEnosys);
    place(kRetEperm);
    ret(kEperm);
    place(kRetAllow);
    ret(SECCOMP_RET_ALLOW);
    place(kEnd);
    return std::move(program_);
  }

 private:
  enum Label { kEnd, kRetEnosys, kRetEperm, kRetAllow, kNextCheck, kNextMatch, kLabels };
  struct Fixup {
    size_t at;
    enum { kTrue, kFalse, kAlways } branch;
  };

  // The number is in the accumulator before and after each of these two.
  void refuse(const RefusedArgument& refused) {
    unlessEqual(static_cast<uint32_t>(numberOf(refused.call)), kNextCheck);
    loadArgument(refused.index);
    unlessEqual(refused.value, kNextMatch);
    if (refused.unlessZero >= 0) {
      auto index = static_cast<unsigned>(refused.unlessZero);
      loadArgument(index);
      unlessEqual(0, kRetEperm);
      loadArgument(index, kHighHalf);
      jumpIf(BPF_JEQ, 0, kNextMatch);
    }
    if (refused.also.index >= 0) {
      loadArgument(static_cast<unsigned>(refused.also.index));
      if (refused.also.mask != kLow32) bitAnd(refused.also.mask);
      if (refused.also.differs) {
        jumpIf(BPF_JEQ, refused.also.value, kNextMatch);
      } else {
        unlessEqual(refused.also.value, kNextMatch);
      }
    }
    jump(kRetEperm);
    place(kNextMatch);
    load(offsetof(seccomp_data, nr));
    place(kNextCheck);
  }

  void allow(const char* call, const std::vector<ArgMatch>& matches) {
    unlessEqual(static_cast<uint32_t>(numberOf(call)), kNextCheck);
    const ArgMatch* before = nullptr;
    for (const ArgMatch& match : matches) {
      auto mask = static_cast<uint32_t>(match.mask), value = static_cast<uint32_t>(match.value);
      bool wide = match.mask != mask;
      KJ_REQUIRE(!wide || match.mask == kAll64, "a mask of more than 32 bits", call);
      // A row of comparisons with one argument loads it once.
      bool loaded =
          before != nullptr && before->index == match.index && !wide && before->mask == match.mask;
      if (!loaded) loadArgument(match.index);
      if (!loaded && mask != kLow32) bitAnd(mask);
      if (wide) {
        unlessEqual(value, kNextMatch);
        loadArgument(match.index, kHighHalf);
        jumpIf(BPF_JEQ, static_cast<uint32_t>(match.value >> 32), kRetAllow);
        place(kNextMatch);
      } else {
        jumpIf(BPF_JEQ, value, kRetAllow);
      }
      before = wide ? nullptr : &match;
    }
    jump(kRetEperm);
    place(kNextCheck);
  }

  // Little endian: the low half of an argument comes first.
  static constexpr uint32_t kHighHalf = 4;
  void loadArgument(unsigned index, uint32_t half = 0) {
    load(static_cast<uint32_t>(offsetof(seccomp_data, args)) + index * 8 + half);
  }
  void bitAnd(uint32_t mask) { program_.push_back(BPF_STMT(BPF_ALU | BPF_AND | BPF_K, mask)); }
  void load(uint32_t offset) { program_.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offset)); }
  void ret(uint32_t value) { program_.push_back(BPF_STMT(BPF_RET | BPF_K, value)); }
  void jump(Label to) {
    fixups_[to].push_back({program_.size(), Fixup::kAlways});
    program_.push_back(BPF_STMT(BPF_JMP | BPF_JA, 0));
  }
  void jumpIf(uint16_t comparison, uint32_t value, Label to) {
    fixups_[to].push_back({program_.size(), Fixup::kTrue});
    program_.push_back(BPF_JUMP(static_cast<uint16_t>(BPF_JMP | comparison | BPF_K), value, 0, 0));
  }
  void unless(uint16_t comparison, uint32_t value, Label to) {
    fixups_[to].push_back({program_.size(), Fixup::kFalse});
    program_.push_back(BPF_JUMP(static_cast<uint16_t>(BPF_JMP | comparison | BPF_K), value, 0, 0));
  }
  void unlessEqual(uint32_t value, Label to) { unless(BPF_JEQ, value, to); }
  void unlessAtLeast(uint32_t value, Label to) { unless(BPF_JGE, value, to); }
  void place(Label label) {
    for (const Fixup& fixup : fixups_[label]) {
      size_t distance = program_.size() - fixup.at - 1;
      KJ_ASSERT(distance <= 255, "a jump of the prelude is too long");
      sock_filter& instruction = program_[fixup.at];
      if (fixup.branch == Fixup::kAlways) instruction.k = static_cast<uint32_t>(distance);
      if (fixup.branch == Fixup::kTrue) instruction.jt = static_cast<uint8_t>(distance);
      if (fixup.branch == Fixup::kFalse) instruction.jf = static_cast<uint8_t>(distance);
    }
    fixups_[label].clear();
  }

  Program program_;
  std::vector<Fixup> fixups_[kLabels];
};

kj::AutoCloseFd sealProgram(const std::string& name, const Program& program) {
  kj::AutoCloseFd file = makeMemfd(("seccomp-" + name).c_str());
  size_t bytes = program.size() * sizeof(sock_filter);
  ssize_t written;
  KJ_SYSCALL(written = pwrite(file, program.data(), bytes, 0));
  KJ_ASSERT(static_cast<size_t>(written) == bytes, "short write to a memfd");
  KJ_SYSCALL(fcntl(file, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE));
  return file;
}

size_t countKnownCalls() {
  constexpr int kPastEveryTable = 1024;
  size_t count = 0;
  for (int number = 0; number < kPastEveryTable; ++number) {
    char* name = seccomp_syscall_resolve_num_arch(SCMP_ARCH_X86_64, number);
    if (name != nullptr) ++count;
    free(name);
  }
  return count;
}

}  // namespace

CompiledProfile compileProfile(const std::string& name) {
  return compileProfile(name, profileNamed(name));
}

CompiledProfile compileProfile(const std::string& name, const Profile& profile) {
  Program program = Prelude().build(profile);
  Program list = compileNumbers(answersOf(profile));
  program.insert(program.end(), list.begin(), list.end());
  KJ_ASSERT(program.size() <= BPF_MAXINSNS, "the filter is too long", program.size());

  CompiledProfile compiled;
  compiled.name = name;
  compiled.bpf = sealProgram(compiled.name, program);
  compiled.instructions = program.size();
  for (const SyscallGroup& group : profile.allowed) compiled.allowedCalls += group.calls.size();
  compiled.knownCalls = countKnownCalls();
  return compiled;
}

CompiledProfile compileCopierProfile() {
  return compileProfile("copier", copierProfile());
}

CompiledProfile compileAgentProfile() {
  return compileProfile("agent", agentProfile());
}

CompiledProfile compileAskingAgentProfile() {
  auto compiled = compileAgentProfile();
  auto program = programOf(compiled);
  askInsteadOfRefusing(program);
  compiled.name = "agent (asks)";
  compiled.bpf = sealProgram("agent-asks", program);
  return compiled;
}

}  // namespace cordon::jailer
