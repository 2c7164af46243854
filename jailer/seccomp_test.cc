#include "jailer/seccomp.h"

#include <capnp/compat/json.h>
#include <capnp/message.h>
#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/netlink.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <sched.h>
#include <seccomp.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <vector>

#include "jailer/seccomp_answer.h"
#include "jailer/seccomp_profile.h"

namespace cordon::jailer {
namespace {

const CompiledProfile& compiled(const std::string& name = "default") {
  static std::map<std::string, CompiledProfile> all;
  auto found = all.find(name);
  if (found == all.end()) found = all.emplace(name, compileProfile(name)).first;
  return found->second;
}

bool loadFilter(std::vector<sock_filter>& program) {
  sock_fprog fprog = {static_cast<unsigned short>(program.size()), program.data()};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &fprog) == 0;
}

constexpr int kNotLoaded = 250;

using Probe = std::function<int()>;

// Runs `probe` in a child under the filter; the child's wait status.
int runFiltered(const Probe& probe, const std::string& profile = "default") {
  auto program = programOf(compiled(profile));
  pid_t child = fork();
  if (child == 0) {
    if (!loadFilter(program)) _exit(kNotLoaded);
    _exit(probe());
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

// errno of a raw call under the filter, 0 when it succeeded.
int errnoUnder(const std::string& profile, long number, long a = 0, long b = 0, long c = 0,
               long d = 0, long e = 0) {
  int status = runFiltered([=] { return syscall(number, a, b, c, d, e) < 0 ? errno : 0; }, profile);
  EXPECT_TRUE(WIFEXITED(status)) << "call " << number << " ended with status " << status;
  return WEXITSTATUS(status);
}

int errnoOf(long number, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0) {
  return errnoUnder("default", number, a, b, c, d, e);
}

TEST(DefaultProfile, IsASealedProgram) {
  EXPECT_GT(compiled().instructions, 100u);
  struct stat status;
  ASSERT_EQ(fstat(compiled().bpf, &status), 0);
  EXPECT_EQ(static_cast<size_t>(status.st_size), compiled().instructions * sizeof(sock_filter));
  EXPECT_EQ(fcntl(compiled().bpf, F_GET_SEALS),
            F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE);
  EXPECT_EQ(pwrite(compiled().bpf, "x", 1, 0), -1);
  EXPECT_NE(fcntl(compiled().bpf, F_GETFD) & FD_CLOEXEC, 0);
}

TEST(DefaultProfile, ReachesAsFarAsTheUsualOne) {
  EXPECT_GE(compiled().allowedCalls, 295u);
  EXPECT_LE(compiled().allowedCalls, 305u);
  EXPECT_GE(compiled().knownCalls, compiled().allowedCalls + 50);
}

// Each call of the architecture is decided on exactly once, with a reason.
TEST(DefaultProfile, EveryKnownCallIsListedOnce) {
  Profile profile = defaultProfile();
  std::map<std::string, int> listed;
  for (const auto* groups : {&profile.allowed, &profile.absent, &profile.refused}) {
    for (const SyscallGroup& group : *groups) {
      EXPECT_GT(std::string(group.reason).size(), 5u);
      for (const char* call : group.calls) {
        ++listed[call];
        EXPECT_GE(seccomp_syscall_resolve_name_arch(SCMP_ARCH_X86_64, call), 0) << call;
      }
    }
  }
  int highest = 0;
  for (const auto& [call, times] : listed) {
    EXPECT_EQ(times, 1) << call;
    highest = std::max(highest, seccomp_syscall_resolve_name_arch(SCMP_ARCH_X86_64, call.c_str()));
  }
  for (int number = 0; number <= highest; ++number) {
    char* name = seccomp_syscall_resolve_num_arch(SCMP_ARCH_X86_64, number);
    if (name != nullptr) {
      EXPECT_TRUE(listed.count(name)) << name << " is not listed";
    }
    free(name);
  }
}

// Rules of libseccomp and the kernel's answers, for each call of the list that
// can be made with arguments that do nothing.
TEST(DefaultProfile, RefusesEachRefusedCall) {
  for (const SyscallGroup& group : defaultProfile().refused) {
    for (const char* call : group.calls) {
      int number = seccomp_syscall_resolve_name_arch(SCMP_ARCH_X86_64, call);
      EXPECT_EQ(errnoOf(number, -1, -1, -1, -1, -1), EPERM) << call;
    }
  }
  for (const SyscallGroup& group : defaultProfile().absent) {
    for (const char* call : group.calls) {
      int number = seccomp_syscall_resolve_name_arch(SCMP_ARCH_X86_64, call);
      EXPECT_EQ(errnoOf(number, -1, -1, -1, -1, -1), ENOSYS) << call;
    }
  }
}

TEST(DefaultProfile, AllowsOrdinaryCalls) {
  EXPECT_EQ(errnoOf(SYS_getppid), 0);
  EXPECT_EQ(errnoOf(SYS_openat, AT_FDCWD, reinterpret_cast<long>("/dev/null"), O_RDONLY), 0);
  EXPECT_EQ(errnoOf(SYS_close, 9999), EBADF);
  EXPECT_EQ(errnoOf(SYS_memfd_create, reinterpret_cast<long>("x"), 0), 0);
  EXPECT_EQ(errnoOf(SYS_ptrace, 0 /* TRACEME */), 0);
  EXPECT_EQ(errnoOf(SYS_futex_waitv, 0, 0, 0, 0, 0), EINVAL);
}

TEST(DefaultProfile, NewerCallsDoNotExist) {
  EXPECT_EQ(errnoOf(470), ENOSYS);
  EXPECT_EQ(errnoOf(1000), ENOSYS);
  EXPECT_EQ(errnoOf(-1), ENOSYS);
}

TEST(DefaultProfile, CloneOnlyWithoutNamespaces) {
  int status = runFiltered([] {
    long child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (child == 0) _exit(0);
    if (child < 0) return errno;
    return waitpid(static_cast<pid_t>(child), nullptr, 0) == child ? 0 : errno;
  });
  EXPECT_EQ(status, 0);
  for (long flag : {CLONE_NEWUSER, CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWNET, CLONE_NEWIPC,
                    CLONE_NEWUTS, CLONE_NEWCGROUP}) {
    EXPECT_EQ(errnoOf(SYS_clone, flag | SIGCHLD), EPERM) << flag;
    EXPECT_EQ(errnoOf(SYS_clone, flag | SIGCHLD | 0x100000000), EPERM) << flag;
  }
  EXPECT_EQ(errnoOf(SYS_clone3, 0, 0), ENOSYS);
}

// The kernel looks at 32 bits of these arguments; so must the filter.
TEST(DefaultProfile, HighBitsDoNotHideAnArgument) {
  constexpr long kHigh = 0x100000000;
  rlimit unlimited = {RLIM_INFINITY, RLIM_INFINITY};
  rlimit files = {64, 64};
  long core = reinterpret_cast<long>(&unlimited), few = reinterpret_cast<long>(&files);
  EXPECT_EQ(errnoOf(SYS_prlimit64, 0, RLIMIT_CORE, core), EPERM);
  EXPECT_EQ(errnoOf(SYS_prlimit64, 0, RLIMIT_CORE | kHigh, core), EPERM);
  EXPECT_EQ(errnoOf(SYS_setrlimit, RLIMIT_CORE, core), EPERM);
  EXPECT_EQ(errnoOf(SYS_setrlimit, RLIMIT_CORE | kHigh, core), EPERM);
  EXPECT_EQ(errnoOf(SYS_prlimit64, 0, RLIMIT_NOFILE, few), 0);
  EXPECT_EQ(errnoOf(SYS_setrlimit, RLIMIT_NOFILE, few), 0);
  EXPECT_EQ(errnoOf(SYS_setrlimit, RLIMIT_NOFILE | kHigh, few), 0);
  EXPECT_EQ(errnoOf(SYS_prlimit64, 0, RLIM_NLIMITS, few), EINVAL);

  // Of the machine's pool of huge pages, whatever their size.
  auto map = [](int flags) {
    return WEXITSTATUS(runFiltered([=] {
      void* at = mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
      return at == MAP_FAILED ? errno : 0;
    }));
  };
  EXPECT_EQ(map(0), 0);
  EXPECT_EQ(map(MAP_HUGETLB), EPERM);
  EXPECT_EQ(map(MAP_HUGETLB | 30 << 26), EPERM);
  long memfd = reinterpret_cast<long>("name");
  EXPECT_EQ(errnoOf(SYS_memfd_create, memfd, MFD_CLOEXEC), 0);
  EXPECT_EQ(errnoOf(SYS_memfd_create, memfd, MFD_HUGETLB), EPERM);

  EXPECT_EQ(errnoOf(SYS_socket, AF_UNIX, SOCK_STREAM, 0), 0);
  EXPECT_EQ(errnoOf(SYS_socket, AF_UNIX | kHigh, SOCK_STREAM, 0), 0);
  for (long family : {AF_VSOCK, AF_ALG, AF_PACKET, AF_TIPC, AF_BLUETOOTH}) {
    EXPECT_EQ(errnoOf(SYS_socket, family, SOCK_STREAM, 0), EPERM) << family;
    EXPECT_EQ(errnoOf(SYS_socket, family | kHigh, SOCK_STREAM, 0), EPERM) << family;
  }

  for (long request : {static_cast<long>(TIOCSTI), 0x541CL}) {
    EXPECT_EQ(errnoOf(SYS_ioctl, 9999, request, 0), EPERM) << request;
    EXPECT_EQ(errnoOf(SYS_ioctl, 9999, request | kHigh, 0), EPERM) << request;
  }
  EXPECT_EQ(errnoOf(SYS_ioctl, 9999, FIONREAD, 0), EBADF);

  EXPECT_EQ(errnoOf(SYS_personality, 0xffffffff), 0);
  EXPECT_EQ(errnoOf(SYS_personality, 0x0040000 /* ADDR_NO_RANDOMIZE */), EPERM);
}

// A ring of processes that trace each other's exit would stay until the next boot.
TEST(DefaultProfile, NobodyTracesAnExit) {
  auto seize = [](long options) {
    return runFiltered([=] {
      pid_t child = fork();
      if (child == 0) {
        pause();
        _exit(0);
      }
      int error = syscall(SYS_ptrace, PTRACE_SEIZE, child, 0, options) < 0 ? errno : 0;
      kill(child, SIGKILL);
      return error;
    });
  };
  EXPECT_EQ(WEXITSTATUS(seize(PTRACE_O_TRACEFORK)), 0);
  EXPECT_EQ(WEXITSTATUS(seize(PTRACE_O_TRACEEXIT)), EPERM);
  EXPECT_EQ(WEXITSTATUS(seize(PTRACE_O_TRACEEXIT | PTRACE_O_TRACEFORK)), EPERM);
  EXPECT_EQ(errnoOf(SYS_ptrace, PTRACE_SETOPTIONS, 1, 0, PTRACE_O_TRACEEXIT), EPERM);
  EXPECT_EQ(errnoOf(SYS_ptrace, PTRACE_SETOPTIONS, 1, 0, PTRACE_O_TRACEFORK), ESRCH);
}

TEST(DefaultProfile, NothingThatNoLimitCounts) {
  EXPECT_EQ(errnoOf(SYS_socket, AF_NETLINK, SOCK_RAW, NETLINK_ROUTE), 0);
  EXPECT_EQ(errnoOf(SYS_socket, AF_NETLINK, SOCK_RAW, NETLINK_USERSOCK), EPERM);
  EXPECT_EQ(errnoOf(SYS_io_setup, 100, 0), ENOSYS);
  for (long option : {SO_ATTACH_FILTER, SO_ATTACH_REUSEPORT_CBPF}) {
    EXPECT_EQ(errnoOf(SYS_setsockopt, -1, SOL_SOCKET, option, 0, 0), EPERM);
    // The same number is IPV6_V6ONLY.
    EXPECT_EQ(errnoOf(SYS_setsockopt, -1, IPPROTO_IPV6, option, 0, 0), EBADF);
  }
}

TEST(DefaultProfile, CoreLimitCanBeRead) {
  int status = runFiltered([] {
    rlimit now;
    return syscall(SYS_prlimit64, 0, RLIMIT_CORE, nullptr, &now) < 0 ? errno : 0;
  });
  EXPECT_EQ(status, 0);
}

class EachProfile : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Seccomp, EachProfile, testing::ValuesIn(profileNames()),
                         [](const auto& test) { return test.param; });

void expectKilledBySigsys(const Probe& probe, const std::string& profile) {
  int status = runFiltered(probe, profile);
  EXPECT_TRUE(WIFSIGNALED(status)) << "status " << status;
  EXPECT_EQ(WTERMSIG(status), SIGSYS);
}

TEST_P(EachProfile, OtherEntryPointsKill) {
  expectKilledBySigsys([] { return syscall(0x40000000 | SYS_getpid) < 0 ? errno : 0; }, GetParam());
  expectKilledBySigsys([] { return syscall(0x40000000 | 512) < 0 ? errno : 0; }, GetParam());
  // int 0x80 with ia32's getpid; where the kernel has no ia32 entry it is SIGSEGV.
  int status = runFiltered(
      [] {
        long result = 20;
        __asm__ volatile("int $0x80" : "+a"(result) : : "memory", "r8", "r9", "r10", "r11");
        return result > 0 ? 0 : 1;
      },
      GetParam());
  ASSERT_TRUE(WIFSIGNALED(status)) << "an ia32 call got through, status " << status;
  EXPECT_TRUE(WTERMSIG(status) == SIGSYS || WTERMSIG(status) == SIGSEGV);
}

TEST_P(EachProfile, ProgramsRun) {
  int status = runFiltered(
      [] {
        execl("/bin/sh", "sh", "-c", "echo a | cat >/dev/null && test -e / && exit 7", nullptr);
        return 1;
      },
      GetParam());
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 7);
}

// What the data say, read as naively as can be.
class Oracle {
 public:
  explicit Oracle(Profile profile) : profile_(std::move(profile)) {
    Profile all = defaultProfile();
    for (const auto* groups : {&all.allowed, &all.absent, &all.refused}) {
      for (const SyscallGroup& group : *groups) {
        for (const char* call : group.calls) known_.insert(number(call));
      }
    }
  }

  uint32_t answer(const seccomp_data& data) const {
    if (data.arch != AUDIT_ARCH_X86_64) return SECCOMP_RET_KILL_PROCESS;
    if (data.nr == -1) return SECCOMP_RET_ERRNO | ENOSYS;
    if ((static_cast<uint32_t>(data.nr) & 0x40000000) != 0 || data.nr < 0) {
      return SECCOMP_RET_KILL_PROCESS;
    }
    if (known_.count(data.nr) == 0) return SECCOMP_RET_ERRNO | ENOSYS;
    for (const RefusedArgument& refused : profile_.refusedArguments) {
      bool harmless = refused.unlessZero >= 0 && data.args[refused.unlessZero] == 0;
      if (refused.also.index >= 0) {
        uint32_t masked = static_cast<uint32_t>(data.args[refused.also.index]) & refused.also.mask;
        harmless = harmless || (masked == refused.also.value) == refused.also.differs;
      }
      if (number(refused.call) == data.nr && !harmless &&
          static_cast<uint32_t>(data.args[refused.index]) == refused.value) {
        return SECCOMP_RET_ERRNO | EPERM;
      }
    }
    for (const SyscallGroup& group : profile_.allowed) {
      if (!has(group, data.nr)) continue;
      if (group.whenAnyOf.empty()) return SECCOMP_RET_ALLOW;
      for (const ArgMatch& match : group.whenAnyOf) {
        if ((data.args[match.index] & match.mask) == match.value) return SECCOMP_RET_ALLOW;
      }
    }
    for (const SyscallGroup& group : profile_.absent) {
      if (has(group, data.nr)) return SECCOMP_RET_ERRNO | static_cast<uint32_t>(group.error);
    }
    return SECCOMP_RET_ERRNO | EPERM;
  }

  // Values at and around every one that an argument rule compares with.
  std::vector<uint64_t> interestingValues() const {
    std::set<uint64_t> values = {0, 1, ~uint64_t{0}};
    auto around = [&](uint64_t value) {
      for (uint64_t v : {value, value + 1, value - 1, value | uint64_t{1} << 32, value | 1}) {
        values.insert(v);
      }
    };
    for (const RefusedArgument& refused : profile_.refusedArguments) {
      around(refused.value);
      if (refused.also.index >= 0) around(refused.also.value);
    }
    for (const SyscallGroup& group : profile_.allowed) {
      for (const ArgMatch& match : group.whenAnyOf) around(match.value);
    }
    for (int bit = 0; bit < 64; ++bit) values.insert(uint64_t{1} << bit);
    return {values.begin(), values.end()};
  }

 private:
  static int number(const char* call) {
    return seccomp_syscall_resolve_name_arch(SCMP_ARCH_X86_64, call);
  }
  static bool has(const SyscallGroup& group, int nr) {
    return std::any_of(group.calls.begin(), group.calls.end(),
                       [nr](const char* call) { return number(call) == nr; });
  }

  Profile profile_;
  std::set<int> known_;
};

TEST_P(EachProfile, TheProgramSaysWhatTheDataSay) {
  Oracle oracle(profileNamed(GetParam()));
  auto program = programOf(compiled(GetParam()));
  auto check = [&](int nr, uint32_t arch, uint64_t value, unsigned argument) {
    seccomp_data data = {};
    data.nr = nr;
    data.arch = arch;
    data.args[argument] = value;
    ASSERT_EQ(answerOf(program, data), oracle.answer(data))
        << "call " << nr << ", argument " << argument << " = " << value;
  };
  for (int nr = -2; nr < 1100; ++nr) {
    check(nr, AUDIT_ARCH_X86_64, 0, 0);
    check(nr, AUDIT_ARCH_I386, 0, 0);
    check(nr, AUDIT_ARCH_AARCH64, 0, 0);
    check(nr | 0x40000000, AUDIT_ARCH_X86_64, 0, 0);
  }
  std::set<int> withRules;
  Profile profile = profileNamed(GetParam());
  for (const RefusedArgument& refused : profile.refusedArguments) {
    withRules.insert(seccomp_syscall_resolve_name_arch(SCMP_ARCH_X86_64, refused.call));
  }
  for (const SyscallGroup& group : profile.allowed) {
    if (group.whenAnyOf.empty()) continue;
    for (const char* call : group.calls) {
      withRules.insert(seccomp_syscall_resolve_name_arch(SCMP_ARCH_X86_64, call));
    }
  }
  auto values = oracle.interestingValues();
  for (int nr : withRules) {
    for (uint64_t value : values) {
      for (unsigned argument = 0; argument < 6; ++argument) {
        check(nr, AUDIT_ARCH_X86_64, value, argument);
      }
      // Some are decided by two.
      for (const RefusedArgument& refused : profile.refusedArguments) {
        for (int other : {refused.unlessZero, refused.also.index}) {
          if (other < 0) continue;
          seccomp_data data = {nr, AUDIT_ARCH_X86_64, 0, {}};
          data.args[refused.index] = refused.value;
          data.args[other] = value;
          ASSERT_EQ(answerOf(program, data), oracle.answer(data)) << nr << " " << value;
        }
      }
    }
  }
}

TEST_P(EachProfile, ListsACallOnceAndSaysWhy) {
  Profile profile = profileNamed(GetParam());
  std::set<std::string> listed;
  for (const auto* groups : {&profile.allowed, &profile.absent, &profile.refused}) {
    for (const SyscallGroup& group : *groups) {
      EXPECT_GT(std::string(group.reason).size(), 5u);
      for (const char* call : group.calls) {
        EXPECT_TRUE(listed.insert(call).second) << call << " is listed twice";
        EXPECT_GE(seccomp_syscall_resolve_name_arch(SCMP_ARCH_X86_64, call), 0) << call;
      }
    }
  }
}

TEST_P(EachProfile, LetsNoNamespaceBeMade) {
  for (long flag : {CLONE_NEWUSER, CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWNET}) {
    EXPECT_EQ(errnoUnder(GetParam(), SYS_clone, flag | SIGCHLD), EPERM) << flag;
    EXPECT_EQ(errnoUnder(GetParam(), SYS_unshare, flag), EPERM) << flag;
  }
  EXPECT_EQ(errnoUnder(GetParam(), SYS_clone3, 0, 0), ENOSYS);
  for (long call : {SYS_mount, SYS_bpf, SYS_io_uring_setup, SYS_keyctl, SYS_userfaultfd, SYS_setns,
                    SYS_perf_event_open, SYS_open_by_handle_at}) {
    EXPECT_EQ(errnoUnder(GetParam(), call), EPERM) << call;
  }
  int ioctlAnswer = GetParam() == "tuned" ? ENOTTY : EPERM;
  EXPECT_EQ(errnoUnder(GetParam(), SYS_ioctl, 9999, TIOCSTI, 0), ioctlAnswer);
}

TEST(Answer, IsNeverFoundOutOfBounds) {
  seccomp_data data = {};
  auto answer = [&](std::vector<sock_filter> program) { return answerOf(program, data); };
  auto load = [](uint32_t offset) {
    return std::vector<sock_filter>{BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offset),
                                    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  };
  EXPECT_EQ(answer(load(sizeof(data) - 4)), SECCOMP_RET_ALLOW);
  EXPECT_EQ(answer(load(sizeof(data) - 3)), SECCOMP_RET_KILL_PROCESS);
  EXPECT_EQ(answer(load(UINT32_MAX)), SECCOMP_RET_KILL_PROCESS);
  EXPECT_EQ(answer({}), SECCOMP_RET_KILL_PROCESS);
  EXPECT_EQ(answer({BPF_JUMP(BPF_JMP | BPF_JA, UINT32_MAX, 0, 0)}), SECCOMP_RET_KILL_PROCESS);
  EXPECT_EQ(
      answer({BPF_STMT(BPF_LD | BPF_W | BPF_IMM, 0), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)}),
      SECCOMP_RET_KILL_PROCESS);
}

TEST(Profiles, AreAsShortAsTheyShouldBe) {
  EXPECT_LE(compiled("tuned").allowedCalls, 70u);
  EXPECT_LE(compiled("build").allowedCalls, 110u);
  EXPECT_THROW(compileProfile("none"), kj::Exception);
  EXPECT_THROW(compileProfile(""), kj::Exception);
}

TEST(Profiles, EachIsWiderThanTheOneBefore) {
  auto callsOf = [](const std::string& name) {
    std::set<std::string> calls;
    for (const SyscallGroup& group : profileNamed(name).allowed) {
      calls.insert(group.calls.begin(), group.calls.end());
    }
    return calls;
  };
  auto tuned = callsOf("tuned"), build = callsOf("build"), all = callsOf("default");
  EXPECT_TRUE(std::includes(build.begin(), build.end(), tuned.begin(), tuned.end()));
  EXPECT_TRUE(std::includes(all.begin(), all.end(), build.begin(), build.end()));
}

TEST(TunedProfile, AnswersSoThatProgramsFallBack) {
  EXPECT_EQ(errnoUnder("tuned", SYS_statx), ENOSYS);
  EXPECT_EQ(errnoUnder("tuned", SYS_faccessat2), ENOSYS);
  EXPECT_EQ(errnoUnder("tuned", SYS_getxattr), EOPNOTSUPP);
  EXPECT_EQ(errnoUnder("tuned", SYS_ioctl, 0, FIONREAD), ENOTTY);
  EXPECT_EQ(errnoUnder("tuned", SYS_fsync, 0), EINVAL);
  EXPECT_EQ(errnoUnder("tuned", SYS_socket, AF_INET, SOCK_STREAM), EPERM);
  EXPECT_EQ(errnoUnder("tuned", SYS_socket, AF_UNIX, SOCK_STREAM), EPERM);
  EXPECT_EQ(errnoUnder("tuned", SYS_prctl, PR_GET_DUMPABLE), EPERM);
  EXPECT_EQ(errnoUnder("tuned", SYS_ptrace), EPERM);
  rlimit files = {64, 64};
  long few = reinterpret_cast<long>(&files);
  EXPECT_EQ(errnoUnder("tuned", SYS_prlimit64, 0, RLIMIT_NOFILE, few), EPERM);
  EXPECT_EQ(errnoUnder("tuned", SYS_prlimit64, 0, RLIMIT_NOFILE, 0, few), 0);
}

TEST(BuildProfile, HasSocketsOfThreeFamilies) {
  for (long family : {AF_UNIX, AF_INET, AF_INET6}) {
    EXPECT_EQ(errnoUnder("build", SYS_socket, family, SOCK_STREAM), 0) << family;
  }
  for (long family : {AF_NETLINK, AF_VSOCK, AF_ALG, AF_PACKET}) {
    EXPECT_EQ(errnoUnder("build", SYS_socket, family, SOCK_STREAM), EPERM) << family;
  }
  rlimit core = {RLIM_INFINITY, RLIM_INFINITY};
  EXPECT_EQ(errnoUnder("build", SYS_prlimit64, 0, RLIMIT_CORE, reinterpret_cast<long>(&core)),
            EPERM);
}

// What an OCI configuration says, read back from its text.
struct OciRules {
  std::set<std::string> always, never;
  std::map<std::string, std::set<std::string>> conditional;  // call -> conditions
};

std::string conditionKey(uint64_t index, uint64_t mask, uint64_t value) {
  return std::to_string(index) + "/" + std::to_string(mask) + "/" + std::to_string(value);
}

using JsonFields = std::map<std::string, capnp::JsonValue::Reader>;

JsonFields fieldsOf(capnp::JsonValue::Reader object) {
  JsonFields fields;
  for (auto field : object.getObject()) {
    fields.emplace(std::string(field.getName().cStr()), field.getValue());
  }
  return fields;
}

void readRule(capnp::JsonValue::Reader rule, OciRules& rules) {
  JsonFields fields = fieldsOf(rule);
  bool allow = std::string(fields.at("action").getString().cStr()) == "SCMP_ACT_ALLOW";
  for (auto name : fields.at("names").getArray()) {
    std::string call = name.getString().cStr();
    if (!allow) {
      EXPECT_EQ(fields.at("errnoRet").getNumber(), ENOSYS);
      rules.never.insert(call);
    } else if (fields.count("args") == 0) {
      rules.always.insert(call);
    } else {
      ASSERT_EQ(fields.at("args").getArray().size(), 1u);
      JsonFields arg = fieldsOf(fields.at("args").getArray()[0]);
      EXPECT_EQ(std::string(arg.at("op").getString().cStr()), "SCMP_CMP_MASKED_EQ");
      rules.conditional[call].insert(
          conditionKey(static_cast<uint64_t>(arg.at("index").getNumber()),
                       static_cast<uint64_t>(arg.at("value").getNumber()),
                       static_cast<uint64_t>(arg.at("valueTwo").getNumber())));
    }
  }
}

void expectWithin(const Profile& profile, OciRules& rules) {
  for (const SyscallGroup& group : profile.allowed) {
    for (const char* call : group.calls) {
      EXPECT_EQ(rules.never.count(call), 0u) << call;
      if (rules.always.count(call)) continue;
      ASSERT_FALSE(group.whenAnyOf.empty()) << call << " is narrower for the agent";
      for (const ArgMatch& match : group.whenAnyOf) {
        EXPECT_TRUE(
            rules.conditional[call].count(conditionKey(match.index, match.mask, match.value)))
            << call;
      }
    }
  }
}

TEST(AgentFilter, IsASupersetOfAllProfiles) {
  std::string text = agentFilterAsOciJson();
  capnp::MallocMessageBuilder message;
  auto json = message.initRoot<capnp::JsonValue>();
  capnp::JsonCodec().decodeRaw(kj::arrayPtr(text.data(), text.size()), json);
  JsonFields top = fieldsOf(json.asReader());
  EXPECT_EQ(std::string(top.at("defaultAction").getString().cStr()), "SCMP_ACT_ERRNO");
  EXPECT_EQ(top.at("defaultErrnoRet").getNumber(), EPERM);
  ASSERT_EQ(top.at("architectures").getArray().size(), 1u);
  EXPECT_EQ(top.at("flags").getArray().size(), 0u);

  OciRules rules;
  for (auto rule : top.at("syscalls").getArray()) readRule(rule, rules);
  for (const std::string& name : profileNames()) expectWithin(profileNamed(name), rules);
  for (const char* call : {"clone3", "prlimit64", "setrlimit", "seccomp", "prctl", "execveat",
                           "setresuid", "setresgid", "setgroups", "kill", "capset"}) {
    EXPECT_TRUE(rules.always.count(call)) << call;
  }
  for (const char* call : {"mount", "unshare", "setns", "bpf", "io_uring_setup", "keyctl"}) {
    EXPECT_EQ(rules.always.count(call) + rules.conditional.count(call), 0u) << call;
  }
}

}  // namespace
}  // namespace cordon::jailer
