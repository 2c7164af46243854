// What is left to cordon-agents, tried from inside. In children, since it is for
// good.
#include "frontend/agents/confine.h"

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <kj/io.h>
#include <linux/filter.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "broker/testing_child.h"

namespace cordon::agents {
namespace {

// What `body` says of a confined process; "" = all is as it should be.
std::string confined(const std::function<std::string()>& body) {
  return broker::testing::inChild([&]() -> std::string {
    confine();
    return body();
  });
}

// Of a call with arguments that have no effect should it pass after all.
struct Refused {
  const char* name;
  std::function<long()> call;
};

std::vector<Refused> refusedCalls() {
  auto none = [](long number) { return [number] { return syscall(number, -1, 0, 0, 0, 0, 0); }; };
  return {
      {"execve", none(SYS_execve)},
      {"execveat", none(SYS_execveat)},
      {"fork", [] { return syscall(SYS_fork); }},
      {"vfork", [] { return syscall(SYS_vfork); }},
      {"clone of a process", [] { return syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0); }},
      {"clone of a thread in a namespace",
       [] {
         constexpr long kThread = CLONE_VM | CLONE_SIGHAND | CLONE_THREAD;
         return syscall(SYS_clone, kThread | CLONE_NEWNS, 0, 0, 0, 0);
       }},
      {"ptrace", none(SYS_ptrace)},
      {"process_vm_readv", none(SYS_process_vm_readv)},
      {"process_vm_writev", none(SYS_process_vm_writev)},
      {"pidfd_open", none(SYS_pidfd_open)},
      {"pidfd_getfd", none(SYS_pidfd_getfd)},
      {"kill", [] { return syscall(SYS_kill, getpid(), 0); }},
      {"unshare", [] { return syscall(SYS_unshare, 0); }},
      {"setns", none(SYS_setns)},
      {"mount", [] { return syscall(SYS_mount, "", "", "", 0, ""); }},
      {"bpf", none(SYS_bpf)},
      {"io_uring_setup", [] { return syscall(SYS_io_uring_setup, 0, nullptr); }},
      {"userfaultfd", none(SYS_userfaultfd)},
      {"perf_event_open", [] { return syscall(SYS_perf_event_open, nullptr, 0, 0, -1, 0); }},
      {"keyctl", none(SYS_keyctl)},
      {"open_by_handle_at", none(SYS_open_by_handle_at)},
      {"setuid", [] { return syscall(SYS_setuid, getuid()); }},
      {"chmod", [] { return syscall(SYS_chmod, "", 0); }},
      {"unlink", [] { return syscall(SYS_unlink, ""); }},
      {"rename", [] { return syscall(SYS_rename, "", ""); }},
      {"mkdir", [] { return syscall(SYS_mkdir, "", 0); }},
      {"bind", none(SYS_bind)},
      {"listen", none(SYS_listen)},
      {"openat to write", [] { return syscall(SYS_openat, AT_FDCWD, "/dev/null", O_WRONLY); }},
      {"openat to make", [] { return syscall(SYS_openat, -1, "none", O_CREAT, 0600); }},
      {"socket of TCP", [] { return syscall(SYS_socket, AF_INET, SOCK_STREAM, 0); }},
      {"socket of netlink", [] { return syscall(SYS_socket, AF_NETLINK, SOCK_RAW, 0); }},
      {"prctl(PR_SET_DUMPABLE)", [] { return syscall(SYS_prctl, PR_SET_DUMPABLE, 1, 0, 0, 0); }},
      {"prlimit64 to set",
       [] {
         rlimit limit{64, 64};
         return syscall(SYS_prlimit64, 0, RLIMIT_NOFILE, &limit, nullptr);
       }},
  };
}

TEST(Confine, WhatIsNoPartOfItsWorkIsRefused) {
  EXPECT_EQ(confined([]() -> std::string {
              std::string passed;
              const pid_t us = getpid();
              for (auto& each : refusedCalls()) {
                long result = each.call();
                if (getpid() != us) _exit(0);  // a process after all
                if (result != -1 || errno != EPERM) {
                  passed += std::string(each.name) + " answers " + std::to_string(result) + "/" +
                            std::to_string(errno) + "; ";
                }
              }
              return passed;
            }),
            "");
}

TEST(Confine, LibcFallsBackFromClone3) {
  EXPECT_EQ(confined([]() -> std::string {
              errno = 0;
              return syscall(SYS_clone3, nullptr, 0) == -1 && errno == ENOSYS ? "" : "it passes";
            }),
            "");
}

TEST(Confine, ItsOwnWorkGoesOn) {
  EXPECT_EQ(confined([]() -> std::string {
              int ran = 0;
              std::thread([&] {
                pthread_setname_np(pthread_self(), "another");
                ++ran;
              }).join();
              if (ran != 1) return "no thread";
              int ends[2];
              if (pipe2(ends, O_CLOEXEC) != 0) return "pipe2";
              kj::AutoCloseFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
              if (socket.get() < 0) return "socket";
              sockaddr_un nobody{};
              nobody.sun_family = AF_UNIX;
              nobody.sun_path[1] = '-';
              if (connect(socket, reinterpret_cast<sockaddr*>(&nobody), sizeof nobody) != -1 ||
                  errno != ECONNREFUSED) {
                return "connect";
              }
              std::ifstream status("/proc/sys/kernel/ostype");
              std::string system;
              if (!(status >> system) || system != "Linux") return "reading a file";
              std::vector<char> memory(64 << 20, 'x');
              memory.resize(128 << 20);
              return "";
            }),
            "");
}

TEST(Confine, NothingCanBeGotBack) {
  EXPECT_EQ(confined([]() -> std::string {
              std::ifstream file("/proc/self/status");
              std::set<std::string> lines;
              for (std::string line; std::getline(file, line);) lines.insert(line);
              std::vector<std::string> expected = {"NoNewPrivs:\t1", "Seccomp:\t2"};
              std::vector<std::string> sets = {"CapInh", "CapPrm", "CapEff", "CapAmb"};
              // An ordinary user can't lower it; without a way to exec it is void.
              if (geteuid() == 0) sets.push_back("CapBnd");
              for (auto& set : sets) expected.push_back(set + ":\t0000000000000000");
              for (auto& line : expected) {
                if (lines.count(line) == 0) return "not " + line;
              }
              rlimit core{};
              getrlimit(RLIMIT_CORE, &core);
              return core.rlim_max <= 1 ? "" : "it dumps core";
            }),
            "");
}

TEST(Confine, EveryCallHasAReasonAndIsNamedOnce) {
  auto profile = frontendCalls();
  std::set<std::string> names;
  size_t calls = 0;
  for (auto* groups : {&profile.allowed, &profile.absent}) {
    for (auto& group : *groups) {
      EXPECT_STRNE(group.reason, "");
      for (auto* call : group.calls) {
        EXPECT_TRUE(names.insert(call).second) << call;
        ++calls;
      }
    }
  }
  EXPECT_LT(calls, 90u);
}

}  // namespace
}  // namespace cordon::agents
