// What explains an exec: the answers and counts, the check of a descriptor, the
// listener against a real filter.
#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <kj/async-io.h>
#include <linux/audit.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <map>
#include <string>
#include <thread>

#include "frontend/agents/explained_child.h"
#include "frontend/agents/listener.h"
#include "frontend/agents/refused_calls.h"
#include "jailer/seccomp_answer.h"
#include "jailer/seccomp_asking.h"

namespace cordon::agents {
namespace {

Program profileOf(const char* name) {
  return std::make_shared<const std::vector<sock_filter>>(
      jailer::programOf(jailer::compileProfile(name)));
}

// As vm-agent makes it of a profile.
std::vector<sock_filter> asking(std::vector<sock_filter> filter) {
  jailer::askInsteadOfRefusing(filter);
  return filter;
}

seccomp_data callOf(long number, uint64_t first = 0, uint64_t second = 0) {
  return {static_cast<int>(number), AUDIT_ARCH_X86_64, 0, {first, second}};
}

using Counts = std::map<std::string, uint64_t>;

Counts countsOf(const RefusedCalls& calls) {
  v1::Explanation out;
  calls.list(out);
  Counts counts;
  for (const auto& call : out.refused_calls()) counts[call.name()] = call.count();
  return counts;
}

// ---------------------------------------------------------------- answers

TEST(RefusedCalls, AnswerAsTheProfileDoes) {
  RefusedCalls usual(profileOf("default")), tuned(profileOf("tuned"));
  EXPECT_EQ(usual.answerTo(callOf(SYS_unshare)), EPERM);
  EXPECT_EQ(usual.answerTo(callOf(SYS_clone3)), ENOSYS);
  EXPECT_EQ(usual.answerTo(callOf(SYS_clone, CLONE_NEWUSER)), EPERM);
  EXPECT_EQ(usual.answerTo(callOf(SYS_socket, AF_VSOCK)), EPERM);
  EXPECT_EQ(usual.answerTo(callOf(400)), ENOSYS);
  EXPECT_EQ(usual.answerTo(callOf(5000)), ENOSYS);
  EXPECT_EQ(tuned.answerTo(callOf(SYS_ioctl)), ENOTTY);
  EXPECT_EQ(tuned.answerTo(callOf(SYS_fsync)), EINVAL);
  EXPECT_EQ(tuned.answerTo(callOf(SYS_getxattr)), EOPNOTSUPP);
  EXPECT_FALSE(usual.strange() || tuned.strange());
}

TEST(RefusedCalls, RefuseWhatNobodyShouldAskAbout) {
  for (auto call : {callOf(SYS_read), callOf(SYS_socket, AF_UNIX), callOf(0x40000001)}) {
    RefusedCalls calls(profileOf("default"));
    EXPECT_EQ(calls.answerTo(call), EPERM) << call.nr;
    EXPECT_TRUE(calls.strange()) << call.nr;
  }
  // A profile that says nothing at all.
  RefusedCalls empty(std::make_shared<const std::vector<sock_filter>>());
  EXPECT_EQ(empty.answerTo(callOf(SYS_read)), EPERM);
}

TEST(RefusedCalls, AreListedByCount) {
  RefusedCalls calls(profileOf("default"));
  for (int i = 0; i < 3; ++i) calls.count(callOf(SYS_unshare));
  for (int i = 0; i < 5; ++i) calls.count(callOf(SYS_bpf));
  for (int i = 0; i < 3; ++i) calls.count(callOf(SYS_mount));
  calls.count(callOf(1023));
  v1::Explanation out;
  calls.list(out);
  std::string shown;
  for (const auto& call : out.refused_calls()) {
    shown += call.name() + "=" + std::to_string(call.count()) + " ";
  }
  EXPECT_EQ(shown, "bpf=5 mount=3 unshare=3 call 1023=1 ");
}

TEST(RefusedCalls, HoldNumbersOutOfTheTableTogether) {
  RefusedCalls calls(profileOf("default"));
  for (int number : {1024, -1, 0x7fffffff, static_cast<int>(0x80000000)}) {
    calls.count(callOf(number));
  }
  auto foreign = callOf(SYS_read);
  foreign.arch = AUDIT_ARCH_I386;
  calls.count(foreign);
  EXPECT_EQ(countsOf(calls), (Counts{{"calls with numbers from 1024 on", 5}}));
}

// ---------------------------------------------------------------- descriptors

TEST(IsSeccompListener, IsNoOtherDescriptor) {
  ExplainedChild child(askingAbout(SYS_getppid), [] { return 0; });
  EXPECT_TRUE(isSeccompListener(child.listener()));

  auto directory = std::filesystem::temp_directory_path() /
                   ("cordon-explain-" + std::to_string(getpid()) + "/anon_inode:seccomp notify");
  std::filesystem::create_directories(directory);
  int pipes[2];
  ASSERT_EQ(pipe2(pipes, O_CLOEXEC), 0);
  kj::AutoCloseFd in(pipes[0]), out(pipes[1]);
  auto pair = ipc::socketPair(SOCK_STREAM);
  const kj::AutoCloseFd others[] = {
      kj::AutoCloseFd(memfd_create("anon_inode:seccomp notify", MFD_CLOEXEC)),
      kj::AutoCloseFd(open(directory.c_str(), O_RDONLY | O_CLOEXEC)),
      kj::AutoCloseFd(open(directory.c_str(), O_PATH | O_CLOEXEC)),
      kj::AutoCloseFd(epoll_create1(EPOLL_CLOEXEC)),
      kj::AutoCloseFd(eventfd(0, EFD_CLOEXEC)),
      kj::AutoCloseFd(open("/dev/null", O_RDWR | O_CLOEXEC))};
  for (const auto& fd : others) {
    ASSERT_GE(fd.get(), 0);
    EXPECT_FALSE(isSeccompListener(fd))
        << std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd.get()));
  }
  for (int fd : {in.get(), out.get(), pair.a.get(), -1, 9999}) EXPECT_FALSE(isSeccompListener(fd));
  std::filesystem::remove_all(directory.parent_path());
}

TEST(ExplainSlots, AreLimitedAndComeBack) {
  ExplainSlots slots;
  std::vector<std::shared_ptr<void>> taken;
  for (size_t i = 0; i < ExplainSlots::kMostPerUser; ++i) taken.push_back(slots.take(1));
  EXPECT_EQ(slots.take(1), nullptr);
  for (uint32_t uid = 2; taken.size() < ExplainSlots::kMost; ++uid) {
    for (size_t i = 0; i < ExplainSlots::kMostPerUser; ++i) taken.push_back(slots.take(uid));
  }
  for (auto& slot : taken) EXPECT_NE(slot, nullptr);
  EXPECT_EQ(slots.take(1000), nullptr);
  taken.pop_back();
  EXPECT_EQ(slots.take(1), nullptr);
  EXPECT_NE(slots.take(1000), nullptr);
}

// ---------------------------------------------------------------- listener

class ListenerTest : public ::testing::Test {
 public:
  ~ListenerTest() noexcept override {}

 protected:
  std::unique_ptr<Listener> serve(kj::AutoCloseFd fd, const char* profile = "default") {
    return std::make_unique<Listener>(io_.unixEventPort, io_.provider->getTimer(), kj::mv(fd),
                                      profileOf(profile), slots_.take(1));
  }
  void stop(Listener& listener) {
    listener.stop().wait(io_.waitScope);
    ASSERT_TRUE(listener.stopped());
  }

  kj::AsyncIoContext io_ = kj::setupAsyncIo();
  ExplainSlots slots_;
};

int errnoOf(long number, long a = 0, long b = 0, long c = 0) {
  return syscall(number, a, b, c) < 0 ? errno : 0;
}

TEST_F(ListenerTest, AnswersAndCountsEachCall) {
  ExplainedChild child(asking(*profileOf("default")), [] {
    for (int i = 0; i < 3; ++i) {
      if (errnoOf(SYS_unshare, CLONE_NEWUSER) != EPERM) return 1;
    }
    if (errnoOf(SYS_clone3) != ENOSYS || errnoOf(400) != ENOSYS) return 2;
    if (errnoOf(SYS_socket, AF_VSOCK, SOCK_STREAM) != EPERM) return 3;
    if (errnoOf(SYS_socket, AF_UNIX, SOCK_STREAM) != 0) return 4;
    return 0;
  });
  auto listener = serve(child.takeListener());
  child.go();
  EXPECT_EQ(child.wait(), 0);
  stop(*listener);
  EXPECT_EQ(countsOf(listener->calls()),
            (Counts{{"unshare", 3}, {"clone3", 1}, {"call 400", 1}, {"socket", 1}}));
  EXPECT_FALSE(listener->calls().strange());
}

TEST_F(ListenerTest, CountsAllThreads) {
  constexpr int kThreads = 8, kCalls = 200;
  ExplainedChild child(asking(*profileOf("default")), [] {
    std::vector<std::thread> threads;
    std::atomic<int> wrong{0};
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&wrong] {
        for (int call = 0; call < kCalls; ++call) wrong += errnoOf(SYS_mount) != EPERM;
      });
    }
    for (auto& thread : threads) thread.join();
    return wrong > 0 ? 1 : 0;
  });
  auto listener = serve(child.takeListener());
  child.go();
  EXPECT_EQ(child.wait(), 0);
  stop(*listener);
  auto counts = countsOf(listener->calls());
  EXPECT_EQ(counts["mount"], uint64_t{kThreads} * kCalls);
}

// As one that catches a signal has it: once told of, the call is not made again.
TEST_F(ListenerTest, SignalsDoNotMakeACallTwice) {
  constexpr int kCalls = 2000;
  ExplainedChild child(asking(*profileOf("default")), [] {
    struct sigaction nothing = {};
    nothing.sa_handler = [](int) {};
    nothing.sa_flags = SA_RESTART;
    sigaction(SIGALRM, &nothing, nullptr);
    itimerval often = {{0, 200}, {0, 200}};
    setitimer(ITIMER_REAL, &often, nullptr);
    for (int i = 0; i < kCalls; ++i) {
      if (errnoOf(SYS_mount) != EPERM) return 1;
    }
    return 0;
  });
  auto listener = serve(child.takeListener());
  child.go();
  EXPECT_EQ(child.wait(), 0);
  stop(*listener);
  EXPECT_EQ(countsOf(listener->calls())["mount"], uint64_t{kCalls});
}

TEST_F(ListenerTest, WhatRunsOnGetsEnosys) {
  auto told = ipc::socketPair(SOCK_SEQPACKET);
  ExplainedChild child(askingAbout(SYS_unshare), [&] {
    for (;;) {
      char error = static_cast<char>(errnoOf(SYS_unshare));
      if (write(told.b, &error, 1) != 1 || error == ENOSYS) return error == ENOSYS ? 7 : 8;
    }
  });
  auto listener = serve(child.takeListener());
  child.go();
  char error = 0;
  ASSERT_EQ(read(told.a, &error, 1), 1);
  EXPECT_EQ(error, EPERM);
  stop(*listener);
  // Reads on, or it would stop with its socket full.
  while (error == EPERM && read(told.a, &error, 1) == 1) {
  }
  EXPECT_EQ(error, ENOSYS);
  EXPECT_EQ(child.wait(), 7);
  EXPECT_GE(countsOf(listener->calls())["unshare"], 1u);
}

TEST_F(ListenerTest, EndsByItselfWhenNobodyHasTheFilter) {
  ExplainedChild child(askingAbout(SYS_unshare), [] { return errnoOf(SYS_unshare); });
  auto listener = serve(child.takeListener());
  child.go();
  EXPECT_EQ(child.wait(), EPERM);
  for (int i = 0; i < 3000 && !listener->stopped(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_TRUE(listener->stopped());
  // With it went its slot.
  std::vector<std::shared_ptr<void>> all;
  for (size_t i = 0; i < ExplainSlots::kMostPerUser; ++i) all.push_back(slots_.take(1));
  EXPECT_NE(all.back(), nullptr);
  stop(*listener);
}

TEST_F(ListenerTest, GoesWithoutAStop) {
  ExplainedChild child(askingAbout(SYS_unshare), [] { return errnoOf(SYS_unshare); });
  serve(child.takeListener());  // gone at once
  child.go();
  int error = child.wait();
  EXPECT_TRUE(error == ENOSYS || error == EPERM) << error;
}

// Joins a thread that may be waiting in a system call.
void interrupt(std::thread& thread) {
  struct sigaction nothing = {};
  nothing.sa_handler = [](int) {};
  sigaction(SIGUSR2, &nothing, nullptr);
  std::atomic<bool> joined{false};
  std::thread joiner([&] {
    thread.join();
    joined = true;
  });
  auto handle = thread.native_handle();
  while (!joined) {
    pthread_kill(handle, SIGUSR2);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  joiner.join();
}

// Whoever sent it kept a copy, and takes the notifications before us: then we may
// wait for one that never comes.
TEST_F(ListenerTest, StopsBesideAThief) {
  for (int round = 0; round < 20; ++round) {
    constexpr int kThreads = 20;
    ExplainedChild child(askingAbout(SYS_unshare), [] {
      std::vector<std::thread> threads;
      for (int i = 0; i < kThreads; ++i) threads.emplace_back([] { errnoOf(SYS_unshare); });
      for (auto& thread : threads) thread.join();
      return 0;
    });
    std::atomic<int> stolen{0};
    kj::AutoCloseFd copy(dup(child.listener()));
    auto listener = serve(child.takeListener());
    std::atomic<bool> full{false};
    std::thread thief([&] {
      while (stolen < kThreads / 2) {
        alignas(seccomp_notif) char room[512] = {};
        if (ioctl(copy, SECCOMP_IOCTL_NOTIF_RECV, room) == 0) {
          ++stolen;
        } else if (full) {
          return;
        }
      }
    });
    child.go();
    // It waits in vain as we may: what is not stolen is answered.
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    full = true;
    interrupt(thief);
    auto began = std::chrono::steady_clock::now();
    stop(*listener);
    EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(2));
  }
}

TEST_F(ListenerTest, RefusesWhatAnotherFilterAsksAbout) {
  ExplainedChild child(askingAbout(SYS_getppid), [] { return errnoOf(SYS_getppid); });
  auto listener = serve(child.takeListener());
  child.go();
  EXPECT_EQ(child.wait(), EPERM);
  stop(*listener);
  EXPECT_TRUE(listener->calls().strange());
}

// What one program can have us do in a second is limited: it waits.
TEST_F(ListenerTest, SlowsAFloodDown) {
  constexpr auto kMore = static_cast<int>(Listener::kPerSecond / 2);
  constexpr auto kCalls = static_cast<int>(Listener::kBurst) + kMore;
  ExplainedChild child(askingAbout(SYS_unshare), [] {
    for (int i = 0; i < kCalls; ++i) {
      if (errnoOf(SYS_unshare) != EPERM) return 1;
    }
    return 0;
  });
  auto listener = serve(child.takeListener());
  auto began = std::chrono::steady_clock::now();
  child.go();
  EXPECT_EQ(child.wait(), 0);
  std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  stop(*listener);
  EXPECT_EQ(countsOf(listener->calls())["unshare"], uint64_t{kCalls});
  // The bucket fills from the first call on, and holds the burst at most.
  EXPECT_GT(took.count() * Listener::kPerSecond + Listener::kBurst, double{kCalls} - 1);
}

}  // namespace
}  // namespace cordon::agents
