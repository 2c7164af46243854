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

#include "jailer/seccomp_profile.h"

#ifndef __x86_64__
#error "the profiles name the calls of x86-64 and its x32 and ia32 entry points"
#endif

namespace cordon::jailer {

namespace {

using Filter = std::unique_ptr<void, decltype(&seccomp_release)>;
using Program = std::vector<sock_filter>;

constexpr uint32_t kX32Bit = 0x40000000;
constexpr uint32_t kNoCall = 0xffffffff;  // what a tracer puts to skip a call
constexpr uint32_t kEnosys = SECCOMP_RET_ERRNO | ENOSYS;
constexpr uint32_t kEperm = SECCOMP_RET_ERRNO | EPERM;

int numberOf(const char* call) {
  int number = seccomp_syscall_resolve_name_arch(SCMP_ARCH_X86_64, call);
  KJ_REQUIRE(number >= 0, "libseccomp does not know this call", call);
  return number;
}

void addRule(const Filter& filter, uint32_t action, const char* call,
             const std::vector<scmp_arg_cmp>& arguments) {
  int result =
      seccomp_rule_add_exact_array(filter.get(), action, numberOf(call),
                                   static_cast<unsigned>(arguments.size()), arguments.data());
  if (result < 0) KJ_FAIL_SYSCALL("seccomp_rule_add_exact_array", -result, call);
}

void addGroup(const Filter& filter, uint32_t action, const SyscallGroup& group) {
  for (const char* call : group.calls) {
    if (group.whenAnyOf.empty()) addRule(filter, action, call, {});
    for (const ArgMatch& match : group.whenAnyOf) {
      addRule(filter, action, call,
              {scmp_arg_cmp{match.index, SCMP_CMP_MASKED_EQ, match.mask, match.value}});
    }
  }
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

Program compileAllowList(const Profile& profile) {
  Filter filter(seccomp_init(SCMP_ACT_ERRNO(EPERM)), &seccomp_release);
  KJ_REQUIRE(filter != nullptr, "seccomp_init failed");
  // x32 and ia32 number their calls differently: whoever enters there means to
  // get round the list.
  setAttribute(filter, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_KILL_PROCESS);
  setAttribute(filter, SCMP_FLTATR_CTL_OPTIMIZE, 2);  // a tree: three times cheaper to load
  for (const SyscallGroup& group : profile.allowed) addGroup(filter, SCMP_ACT_ALLOW, group);
  for (const SyscallGroup& group : profile.absent) {
    addGroup(filter, SCMP_ACT_ERRNO(ENOSYS), group);
  }
  return exportProgram(filter);
}

uint32_t highestNumber(const Profile& profile) {
  int highest = 0;
  for (const auto* groups : {&profile.allowed, &profile.absent, &profile.refused}) {
    for (const SyscallGroup& group : *groups) {
      for (const char* call : group.calls) highest = std::max(highest, numberOf(call));
    }
  }
  return static_cast<uint32_t>(highest);
}

// What libseccomp's allow rules can't say, put in front of its program:
// ENOSYS for calls newer than the list, and single argument values refused.
// Jumps in BPF are relative, so the program behind it stays as it is.
class Prelude {
 public:
  Program build(const Profile& profile) {
    load(offsetof(seccomp_data, arch));
    unlessEqual(AUDIT_ARCH_X86_64, kEnd);
    load(offsetof(seccomp_data, nr));
    jumpIf(BPF_JEQ, kNoCall, kRetEnosys);
    jumpIf(BPF_JGE, kX32Bit, kEnd);
    jumpIf(BPF_JGT, highestNumber(profile), kRetEnosys);
    for (const RefusedArgument& refused : profile.refusedArguments) {
      load(offsetof(seccomp_data, nr));
      unlessEqual(static_cast<uint32_t>(numberOf(refused.call)), kNextCheck);
      // Little endian: the low half of the argument comes first.
      load(static_cast<uint32_t>(offsetof(seccomp_data, args) + refused.index * 8));
      jumpIf(BPF_JEQ, refused.value, kRetEperm);
      place(kNextCheck);
    }
    jump(kEnd);
    place(kRetEnosys);
    ret(kEnosys);
    place(kRetEperm);
    ret(kEperm);
    place(kEnd);
    return std::move(program_);
  }

 private:
  enum Label { kEnd, kRetEnosys, kRetEperm, kNextCheck, kLabels };
  struct Fixup {
    size_t at;
    enum { kTrue, kFalse, kAlways } branch;
  };

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
  void unlessEqual(uint32_t value, Label to) {
    fixups_[to].push_back({program_.size(), Fixup::kFalse});
    program_.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 0));
  }
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

CompiledProfile compileDefaultProfile() {
  Profile profile = defaultProfile();
  Program program = Prelude().build(profile);
  Program list = compileAllowList(profile);
  program.insert(program.end(), list.begin(), list.end());
  KJ_ASSERT(program.size() <= BPF_MAXINSNS, "the filter is too long", program.size());

  CompiledProfile compiled;
  compiled.name = "default";
  compiled.bpf = sealProgram(compiled.name, program);
  compiled.instructions = program.size();
  for (const SyscallGroup& group : profile.allowed) compiled.allowedCalls += group.calls.size();
  compiled.knownCalls = countKnownCalls();
  return compiled;
}

}  // namespace cordon::jailer
