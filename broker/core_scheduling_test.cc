#include "broker/core_scheduling.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "jailer/core_scheduling.h"

namespace cordon::broker {
namespace {

struct Taken {
  int error = -1;
  unsigned long own = 0, childs = 0;
};

// In a process of its own: the cookie it takes, and that of a child that it then
// forks.
Taken inAChild() {
  std::array<int, 2> ends{};
  EXPECT_EQ(pipe(ends.data()), 0);
  pid_t pid = fork();
  if (pid == 0) {
    Taken taken;
    taken.error = jailer::takeCoreCookie(taken.own);
    pid_t below = fork();
    if (below == 0) {
      if (taken.error == 0) taken.error = jailer::readCoreCookie(taken.childs);
      _exit(write(ends[1], &taken, sizeof taken) == sizeof taken ? 0 : 1);
    }
    waitpid(below, nullptr, 0);
    _exit(0);
  }
  Taken taken;
  EXPECT_EQ(read(ends[0], &taken, sizeof taken), ssize_t{sizeof taken});
  EXPECT_EQ(waitpid(pid, nullptr, 0), pid);
  close(ends[0]);
  close(ends[1]);
  return taken;
}

TEST(CoreScheduling, IsThereExactlyWhereACookieCanBeTaken) {
  std::string why = whyNoCoreScheduling();
  Taken first = inAChild(), second = inAChild();
  EXPECT_EQ(why.empty(), first.error == 0) << why;
  EXPECT_EQ(first.error, second.error);
  unsigned long ours = 0;
  EXPECT_EQ(jailer::readCoreCookie(ours), first.error);
  EXPECT_EQ(ours, 0u);
  if (first.error != 0) {
    EXPECT_EQ(why, describeCoreScheduling(first.error, smtIsOn()));
    return;
  }
  EXPECT_NE(first.own, 0u);
  EXPECT_NE(first.own, second.own);
  EXPECT_EQ(first.own, first.childs);
}

TEST(CoreScheduling, TheReasonIsTheKernels) {
  EXPECT_EQ(describeCoreScheduling(0, true), "");
  EXPECT_NE(describeCoreScheduling(ENODEV, false).find("SMT is off"), std::string::npos);
  EXPECT_NE(describeCoreScheduling(EINVAL, false).find("SMT is off"), std::string::npos);
  EXPECT_NE(describeCoreScheduling(EINVAL, false).find("CONFIG_SCHED_CORE"), std::string::npos);
  EXPECT_NE(describeCoreScheduling(EINVAL, true).find("may run two sandboxes"), std::string::npos);
  EXPECT_NE(describeCoreScheduling(EPERM, true).find("not permitted"), std::string::npos);
}

}  // namespace
}  // namespace cordon::broker
