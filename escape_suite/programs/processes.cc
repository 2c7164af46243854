// Many processes, processes that stay, and signals to everybody.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "escape_suite/programs/program.h"

namespace cordon::escape_programs {
namespace {

constexpr int kMostChildren = 4096;
constexpr long long kDaemonLivesMs = 30'000;

[[noreturn]] void waitToBeKilled() {
  // Dies with its parent, so that nothing stays where nothing contains it.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  sleepMs(60'000);
  _exit(0);
}

struct Reach {
  pid_t self, parent;
  long long reachable, seen;
};

bool countReachable(int pid, void* context) {
  auto* reach = static_cast<Reach*>(context);
  if (pid == reach->self) return true;
  reach->seen++;
  reach->reachable += kill(pid, 0) == 0;
  return true;
}

}  // namespace

// fork COUNT
void forkMany(const Arguments& arguments) {
  long long wanted = arguments.number(0, 500);
  if (wanted > kMostChildren) wanted = kMostChildren;
  static pid_t children[kMostChildren];
  long long alive = 0;
  int error = 0;
  for (; alive < wanted; ++alive) {
    pid_t child = fork();
    if (child == 0) waitToBeKilled();
    if (child < 0) {
      error = errno;
      break;
    }
    children[alive] = child;
  }
  // All of them at once, at this moment: none has been waited for.
  long long dead = 0;
  for (long long i = 0; i < alive; ++i) {
    siginfo_t info{};
    if (waitid(P_PID, static_cast<id_t>(children[i]), &info, WEXITED | WNOHANG | WNOWAIT) == 0) {
      dead += info.si_pid != 0;
    }
  }
  report({{"wanted", wanted}, {"alive", alive - dead}, {"error", error}});
  for (long long i = 0; i < alive; ++i) kill(children[i], SIGKILL);
  for (long long i = 0; i < alive; ++i) waitpid(children[i], nullptr, 0);
}

// zombies COUNT
void zombies(const Arguments& arguments) {
  long long wanted = arguments.number(0, 500);
  long long made = 0;
  int error = 0;
  for (; made < wanted; ++made) {
    pid_t child = fork();
    if (child == 0) _exit(0);
    if (child < 0) {
      error = errno;
      break;
    }
  }
  report({{"wanted", wanted}, {"made", made}, {"error", error}});
}

// daemon NONCE
//
// The nonce is in the argument list, where the runner finds it in the host's
// /proc.
void daemonOutlives(const Arguments& arguments) {
  int ready[2];
  if (pipe(ready) < 0) {
    report({{"pipe", errno}});
    return;
  }
  pid_t child = fork();
  if (child < 0) {
    report({{"fork", errno}});
    return;
  }
  if (child == 0) {
    setsid();
    if (fork() != 0) _exit(0);
    for (int signo = 1; signo < 32; ++signo) signal(signo, SIG_IGN);
    signal(SIGCHLD, SIG_DFL);
    int pid = getpid();
    (void)!write(ready[1], &pid, sizeof(pid));
    // The exec's pipes are let go: nothing waits for this one any more.
    for (int fd = 0; fd < 64; ++fd) close(fd);
    if (chdir("/") < 0) _exit(1);
    sleepMs(kDaemonLivesMs);
    _exit(0);
  }
  close(ready[1]);
  waitpid(child, nullptr, 0);
  int pid = 0;
  bool started = read(ready[0], &pid, sizeof(pid)) == sizeof(pid);
  report({{"daemon", started}, {"nonce", static_cast<long long>(strlen(arguments.text(0)))}});
}

void killAll(const Arguments& arguments) {
  Reach reach{getpid(), getppid(), 0, 0};
  eachProcess(countReachable, &reach);
  report({{"seen", reach.seen}, {"reachable", reach.reachable}});
  if (!arguments.armed) return;
  // Children of one's own show that the signal went out.
  constexpr int kBait = 3;
  pid_t bait[kBait];
  for (pid_t& child : bait) {
    child = fork();
    if (child == 0) waitToBeKilled();
  }
  int error = errorOf(kill(-1, SIGKILL));
  int baitKilled = 0;
  for (pid_t child : bait) {
    int status = 0;
    if (child > 0 && waitpid(child, &status, 0) == child) {
      baitKilled += WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    }
  }
  report({{"kill_error", error}, {"bait_killed", baitKilled}, {"survived", 1}});
}

void alive(const Arguments&) {
  report({{"alive", 1}});
}

}  // namespace cordon::escape_programs
