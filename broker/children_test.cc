#include "broker/children.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <kj/async.h>
#include <kj/debug.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <set>

#include "broker/core_scheduling.h"

namespace cordon::broker {
namespace {

struct Pipe {
  kj::AutoCloseFd read, write;
  Pipe() {
    int fds[2];
    KJ_SYSCALL(pipe2(fds, O_CLOEXEC));
    read = kj::AutoCloseFd(fds[0]);
    write = kj::AutoCloseFd(fds[1]);
  }
  std::string drain() {
    write = nullptr;
    std::string all;
    char buffer[4096];
    ssize_t n;
    while ((n = ::read(read.get(), buffer, sizeof(buffer))) > 0) {
      all.append(buffer, static_cast<size_t>(n));
    }
    return all;
  }
};

// Ends it without its Child noticing: the loop does not run here.
bool becomeZombie(Child& child) {
  siginfo_t info{};
  return kill(child.pid(), SIGTERM) == 0 &&
         waitid(P_PID, static_cast<id_t>(child.pid()), &info, WEXITED | WNOWAIT) == 0;
}

class ChildrenTest : public ::testing::Test {
 protected:
  ChildrenTest() : loop(port), scope(loop), children(port) {}

  ~ChildrenTest() noexcept override {}

  SpawnSpec shell(const std::string& script) {
    SpawnSpec spec;
    spec.program = "/bin/sh";
    spec.argv = {"sh", "-c", script};
    spec.env = {"PATH=/usr/bin:/bin"};
    return spec;
  }
  std::string output(SpawnSpec spec) {
    Pipe pipe;
    spec.fds.push_back({pipe.write.get(), 1});
    auto child = children.spawn(spec);
    std::string text = pipe.drain();
    EXPECT_EQ(child->onExit().wait(scope).code, 0) << text;
    return text;
  }

  kj::UnixEventPort port;
  kj::EventLoop loop;
  kj::WaitScope scope;
  Children children;
};

TEST_F(ChildrenTest, ReportsExitStatusAndSignalToSeveralWaiters) {
  auto exits = children.spawn(shell("exit 7"));
  auto first = exits->onExit(), second = exits->onExit();
  EXPECT_EQ(first.wait(scope).code, 7);
  ExitStatus again = second.wait(scope);
  EXPECT_FALSE(again.signaled);
  EXPECT_EQ(again.code, 7);
  EXPECT_FALSE(exits->signal(SIGKILL));

  auto killed = children.spawn(shell("exec sleep 1000"));
  EXPECT_TRUE(killed->exited() == nullptr);
  EXPECT_TRUE(killed->signal(SIGKILL));
  ExitStatus status = killed->onExit().wait(scope);
  EXPECT_TRUE(status.signaled);
  EXPECT_EQ(status.code, SIGKILL);
  EXPECT_EQ(killed->onExit().wait(scope).code, SIGKILL);  // asked late
}

TEST_F(ChildrenTest, ExitedSeesTheEndWithoutTheLoopAndThePromiseStillResolves) {
  auto child = children.spawn(shell("exec sleep 1000"));
  ASSERT_TRUE(becomeZombie(*child));
  KJ_IF_MAYBE (status, child->exited()) {
    EXPECT_EQ(status->code, SIGTERM);
  } else {
    FAIL() << "a zombie that exited() does not see";
  }
  EXPECT_EQ(child->onExit().wait(scope).code, SIGTERM);
}

TEST_F(ChildrenTest, ResetsSignalsAndMakesASession) {
  signal(SIGPIPE, SIG_IGN);
  sigset_t block, before;
  sigemptyset(&block);
  sigaddset(&block, SIGTERM);
  sigprocmask(SIG_BLOCK, &block, &before);
  std::string status = output(shell("exec grep -E '^Sig(Blk|Ign)' /proc/self/status"));
  std::string session = output(shell("exec cut -d' ' -f1,6 /proc/self/stat"));
  sigprocmask(SIG_SETMASK, &before, nullptr);
  signal(SIGPIPE, SIG_DFL);
  EXPECT_EQ(status, "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n");
  size_t space = session.find(' ');
  ASSERT_NE(space, std::string::npos);
  EXPECT_EQ(session.substr(0, space) + "\n", session.substr(space + 1));
}

TEST_F(ChildrenTest, OnlyNamedDescriptorsArrive) {
  int leaky = open("/etc/passwd", O_RDONLY);  // not CLOEXEC on purpose
  int high;
  KJ_SYSCALL(high = fcntl(leaky, F_DUPFD, 200));
  std::string list = output(shell("cd /proc/self/fd && echo *"));
  close(leaky);
  close(high);
  // 3 or so is the shell's own handle on the directory, if it keeps one.
  EXPECT_TRUE(list == "0 1 2\n" || list == "0 1 2 3\n") << list;
  EXPECT_EQ(output(shell("readlink /proc/self/fd/0 /proc/self/fd/2")), "/dev/null\n/dev/null\n");
}

TEST_F(ChildrenTest, ManyDescriptorsOfOursAreNoHindrance) {
  std::vector<kj::AutoCloseFd> many;
  for (int i = 0; i < 700; ++i) many.emplace_back(open("/dev/null", O_RDONLY | O_CLOEXEC));
  Pipe pipe;
  KJ_SYSCALL(write(pipe.write.get(), "far", 3));
  pipe.write = nullptr;
  ASSERT_GT(pipe.read.get(), 600);
  auto spec = shell("cat <&5; cd /proc/self/fd && echo *");
  spec.fds.emplace_back(pipe.read.get(), 5);
  std::string told = output(std::move(spec));
  EXPECT_TRUE(told == "far0 1 2 5\n" || told == "far0 1 2 3 5\n") << told;
  // Ours are as they were.
  EXPECT_GE(fcntl(many.back().get(), F_GETFD), 0);
}

TEST_F(ChildrenTest, OverlappingSourcesAndTargetsAreSwapped) {
  Pipe a, b;
  KJ_SYSCALL(write(a.write.get(), "A", 1));
  KJ_SYSCALL(write(b.write.get(), "B", 1));
  a.write = nullptr;
  b.write = nullptr;
  auto spec =
      shell("cat <&" + std::to_string(a.read.get()) + "; cat <&" + std::to_string(b.read.get()));
  // Each is the other's target.
  spec.fds = {{a.read.get(), b.read.get()}, {b.read.get(), a.read.get()}};
  EXPECT_EQ(output(spec), "BA");
}

TEST_F(ChildrenTest, WorksInTheDirectoryAndEnvironmentGiven) {
  auto spec = shell("pwd; exec env");
  spec.cwd = "/usr";
  spec.env = {"ONLY=this", "PWD=/usr"};
  EXPECT_EQ(output(spec), "/usr\nONLY=this\nPWD=/usr\n");
}

TEST_F(ChildrenTest, RefusesBadRequests) {
  auto spec = shell("true");
  spec.program = "/nonexistent/program";
  EXPECT_ANY_THROW(children.spawn(spec));
  spec.program = "relative";
  EXPECT_ANY_THROW(children.spawn(spec));
  spec = shell("true");
  spec.fds = {{0, 5}, {1, 5}};
  EXPECT_ANY_THROW(children.spawn(spec));
  spec.fds = {{9999, 5}};
  EXPECT_ANY_THROW(children.spawn(spec));
  spec.fds = {};
  spec.argv.push_back(std::string("a\0b", 3));
  EXPECT_ANY_THROW(children.spawn(spec));
  // Nothing is left of the failed ones.
  EXPECT_EQ(waitid(P_ALL, 0, nullptr, WEXITED | WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
}

// Starts a shell whose background child falls to us, and returns its pid.
pid_t makeOrphan(Children& children, kj::WaitScope& scope, const std::string& orphan) {
  Pipe pipe;
  SpawnSpec spec;
  spec.program = "/bin/sh";
  spec.argv = {"sh", "-c", "(exec 1>&-; " + orphan + ") & echo $!"};
  spec.env = {"PATH=/usr/bin:/bin"};
  spec.fds = {{pipe.write.get(), 1}};
  auto child = children.spawn(spec);
  std::string text = pipe.drain();
  child->onExit().wait(scope);
  return static_cast<pid_t>(std::stol(text));
}

TEST_F(ChildrenTest, AdoptsWhatFellToIt) {
  becomeSubreaper();
  pid_t pid = makeOrphan(children, scope, "exec sleep 1000");
  auto maybe = children.adopt(pid);
  KJ_IF_MAYBE (child, maybe) {
    EXPECT_EQ((*child)->pid(), pid);
    EXPECT_TRUE(children.adopt(pid) == nullptr) << "two owners of one process";
    EXPECT_TRUE((*child)->signal(SIGTERM));
    EXPECT_EQ((*child)->onExit().wait(scope).code, SIGTERM);
  } else {
    FAIL() << "not adopted";
  }
  EXPECT_TRUE(children.adopt(getpid()) == nullptr);
  EXPECT_TRUE(children.adopt(1) == nullptr);
  EXPECT_TRUE(children.adopt(pid) == nullptr);
  EXPECT_TRUE(children.adopt(0) == nullptr);
  EXPECT_TRUE(children.adopt(-1) == nullptr);
}

TEST_F(ChildrenTest, StraysAreReapedAndOwnedStatusesStay) {
  becomeSubreaper();
  auto owned = children.spawn(shell("exec sleep 1000"));
  ASSERT_TRUE(becomeZombie(*owned));
  siginfo_t info{};
  std::set<pid_t> strays;
  for (int i = 0; i < 3; ++i) strays.insert(makeOrphan(children, scope, "exec sleep 1000"));
  for (pid_t pid : strays) {
    ASSERT_EQ(kill(pid, SIGKILL), 0);
    ASSERT_EQ(waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT), 0);
  }
  {
    auto hold = children.holdStrays();
    EXPECT_EQ(children.reapStrays(), 0u);
    KJ_IF_MAYBE (late, children.adopt(*strays.begin())) {  // a zombie still has its status
      EXPECT_EQ((*late)->onExit().wait(scope).code, SIGKILL);
    } else {
      FAIL() << "the hold did not keep the zombie";
    }
  }
  EXPECT_EQ(children.reapStrays(), 2u);
  EXPECT_EQ(children.reapStrays(), 0u);
  EXPECT_EQ(owned->onExit().wait(scope).code, SIGTERM);
}

TEST_F(ChildrenTest, ADroppedChildBecomesAStray) {
  auto child = children.spawn(shell("exec sleep 1000"));
  ASSERT_TRUE(becomeZombie(*child));
  child = nullptr;
  EXPECT_EQ(children.reapStrays(), 1u);
}

TEST_F(ChildrenTest, AChildOutlivesItsChildren) {
  auto own = kj::heap<Children>(port);
  auto child = own->spawn(shell("exit 4"));
  own = nullptr;
  EXPECT_EQ(child->onExit().wait(scope).code, 4);
}

// Where the kernel can: one of its own, which what it starts has too.
TEST_F(ChildrenTest, ACoreIsItsOwnOrItIsNotStarted) {
  auto spec = shell("sleep 1000 & echo $!; wait");
  auto plain = children.spawn(shell("exit 0"));
  EXPECT_EQ(plain->coreCookie(), 0u);
  plain->onExit().wait(scope);
  spec.ownCore = true;
  if (auto why = whyNoCoreScheduling(); !why.empty()) {
    EXPECT_ANY_THROW(children.spawn(spec)) << why;
    EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << "a process is left";
    return;
  }
  auto cookieOf = [](pid_t pid) {
    unsigned long cookie = 0;
    EXPECT_EQ(prctl(PR_SCHED_CORE, PR_SCHED_CORE_GET, pid, 0, &cookie), 0) << strerror(errno);
    return cookie;
  };
  std::set<uint64_t> cookies;
  for (int i = 0; i < 2; ++i) {
    Pipe pipe;
    auto with = spec;
    with.fds.push_back({pipe.write.get(), 1});
    auto child = children.spawn(with);
    char text[16] = {};
    ASSERT_GT(read(pipe.read.get(), text, sizeof(text) - 1), 0);
    auto below = static_cast<pid_t>(atoi(text));
    EXPECT_NE(child->coreCookie(), 0u);
    EXPECT_EQ(child->coreCookie(), cookieOf(child->pid()));
    EXPECT_EQ(child->coreCookie(), cookieOf(below));
    cookies.insert(child->coreCookie());
    kill(below, SIGKILL);
    child->onExit().wait(scope);
  }
  EXPECT_EQ(cookies.size(), 2u);
  EXPECT_EQ(cookieOf(0), 0u);
}

TEST_F(ChildrenTest, LeaksNoDescriptors) {
  auto count = [] {
    int n = 0;
    for (int fd = 0; fd < 1024; ++fd) n += fcntl(fd, F_GETFD) >= 0;
    return n;
  };
  output(shell("true"));
  int before = count();
  for (int i = 0; i < 50; ++i) output(shell("true"));
  EXPECT_EQ(count(), before);
}

}  // namespace
}  // namespace cordon::broker
