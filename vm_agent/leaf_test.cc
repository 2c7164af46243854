// Killing by a leaf's list, on files that stand for a cgroup's.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <kj/debug.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "vm_agent/processes.h"

namespace cordon::agent {
namespace {

// A child that sleeps until it is killed, and stays a zombie then.
class Sleeper {
 public:
  Sleeper() {
    KJ_SYSCALL(pid_ = fork());
    if (pid_ == 0) {
      for (;;) pause();
    }
  }
  ~Sleeper() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  KJ_DISALLOW_COPY(Sleeper);

  pid_t pid() const { return pid_; }
  bool dead() const {
    siginfo_t info{};
    waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT);
    return info.si_pid == pid_;
  }

 private:
  pid_t pid_ = 0;
};

class LeafTest : public testing::TestWithParam<guest::JoinMode> {
 protected:
  LeafTest() {
    char pattern[] = "/tmp/cordon-leaf-test-XXXXXX";
    KJ_REQUIRE(mkdtemp(pattern) != nullptr);
    dir_ = pattern;
    list("");
    bool v2 = GetParam() == guest::JoinMode::CGROUP_V2;
    int fd;
    KJ_SYSCALL(fd = open((v2 ? dir_ : procs()).c_str(), O_RDONLY | O_CLOEXEC));
    leaf_->fds.emplace_back(fd);
    processes_ = makeLeafProcesses(loop_, GetParam(), leaf_, [](const MainEnd&) {});
  }
  ~LeafTest() noexcept override { std::filesystem::remove_all(dir_); }

  std::string procs() const { return dir_ + "/cgroup.procs"; }
  void list(const std::string& text) { std::ofstream(procs()) << text; }
  void list(pid_t pid) { list(std::to_string(pid) + "\n"); }

  Loop loop_;
  std::string dir_;
  std::shared_ptr<Leaf> leaf_ = std::make_shared<Leaf>();
  std::unique_ptr<Processes> processes_;
};

TEST_P(LeafTest, AListThatCannotBeReadIsNotAnEmptyOne) {
  Sleeper sleeper;
  list(sleeper.pid());
  rlimit before{};
  KJ_SYSCALL(getrlimit(RLIMIT_NOFILE, &before));
  int lowest;
  KJ_SYSCALL(lowest = open("/dev/null", O_RDONLY | O_CLOEXEC));
  close(lowest);
  rlimit none = before;
  none.rlim_cur = static_cast<rlim_t>(lowest);
  KJ_SYSCALL(setrlimit(RLIMIT_NOFILE, &none));
  bool over = processes_->killPass(0);
  KJ_SYSCALL(setrlimit(RLIMIT_NOFILE, &before));
  EXPECT_FALSE(over);
  EXPECT_FALSE(sleeper.dead());

  EXPECT_FALSE(processes_->killPass(0));
  while (!sleeper.dead()) usleep(1000);
  list("");
  EXPECT_TRUE(processes_->killPass(0));
}

TEST_P(LeafTest, APassEndsWithItsTime) {
  Sleeper sleeper;
  list(sleeper.pid());  // it is never taken off
  uint64_t begin = monotonicUs();
  EXPECT_FALSE(processes_->killPass(begin));
  EXPECT_LT(monotonicUs() - begin, 15'000u);
  begin = monotonicUs();
  EXPECT_FALSE(processes_->killPass(begin + 20'000));
  EXPECT_GE(monotonicUs() - begin, 20'000u);
}

TEST_P(LeafTest, ARemovedLeafIsEmpty) {
  if (GetParam() == guest::JoinMode::CGROUP_V1) {
    GTEST_SKIP() << "a removed plain file can still be read";
  }
  std::filesystem::remove(procs());
  EXPECT_TRUE(processes_->killPass(0));
}

INSTANTIATE_TEST_SUITE_P(Versions, LeafTest,
                         ::testing::Values(guest::JoinMode::CGROUP_V1, guest::JoinMode::CGROUP_V2),
                         [](auto& test) {
                           return test.param == guest::JoinMode::CGROUP_V1 ? "v1" : "v2";
                         });

}  // namespace
}  // namespace cordon::agent
