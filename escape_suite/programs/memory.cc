// More memory than the sandbox has.
#include <signal.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "escape_suite/programs/program.h"

namespace cordon::escape_programs {
namespace {

constexpr int kChildren = 3;
constexpr long long kWaitMs = 5000;

// A mebibyte that is really there: every page written, with something that no
// page deduplication would merge.
bool touchOneMiB(long long number) {
  void* memory = mmap(nullptr, kMiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return false;
  auto* bytes = static_cast<volatile char*>(memory);
  for (long long at = 0; at < kMiB; at += 4096) {
    bytes[at] = static_cast<char>(at + number + 1);
  }
  return true;
}

struct Child {
  volatile long long touched;
  volatile int failed;  // errno
  volatile int complete;
};

[[noreturn]] void holdMemory(Child* mine, volatile int* leave, long long mebibytes) {
  for (long long i = 0; i < mebibytes; ++i) {
    if (!touchOneMiB(i)) {
      mine->failed = errno;
      break;
    }
    mine->touched = (i + 1) * kMiB;
  }
  mine->complete = 1;
  long long end = monotonicMs() + kWaitMs;
  while (*leave == 0 && monotonicMs() < end) sleepMs(5);
  _exit(0);
}

}  // namespace

// memory BYTES
void memory(const Arguments& arguments) {
  long long wanted = arguments.number(0, 1024 * kMiB) / kMiB;
  long long touched = 0;
  int error = 0;
  for (; touched < wanted; ++touched) {
    if (!touchOneMiB(touched)) {
      error = errno;
      break;
    }
    if (touched % 8 == 7) report({{"touched", (touched + 1) * kMiB}});
  }
  report({{"touched", touched * kMiB}, {"wanted", wanted * kMiB}, {"error", error}});
}

// three_children BYTES-EACH
//
// Memory counts as held together only while all three have all of theirs and
// are all alive: a sum of what each once had would count a dead child's too.
void threeChildren(const Arguments& arguments) {
  long long each = arguments.number(0, 64 * kMiB) / kMiB;
  auto* shared = static_cast<Child*>(sharedMemory(4096));
  if (shared == nullptr) {
    report({{"shared_memory", errno}});
    return;
  }
  auto* leave = reinterpret_cast<volatile int*>(shared + kChildren);
  pid_t pids[kChildren];
  int started = 0;
  for (int i = 0; i < kChildren; ++i) {
    pids[i] = fork();
    if (pids[i] == 0) holdMemory(&shared[i], leave, each);
    started += pids[i] > 0;
  }
  report({{"started", started}, {"each", each * kMiB}});

  int alive = started;
  int killed = 0;
  long long together = 0;
  long long most = 0;
  long long end = monotonicMs() + kWaitMs;
  while (alive > 0 && monotonicMs() < end) {
    for (pid_t& pid : pids) {
      int status = 0;
      if (pid <= 0 || waitpid(pid, &status, WNOHANG) != pid) continue;
      killed += WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
      pid = 0;
      --alive;
    }
    bool complete = alive == kChildren;
    long long sum = 0;
    for (int i = 0; i < kChildren; ++i) {
      complete = complete && shared[i].complete != 0 && shared[i].failed == 0;
      sum += shared[i].touched;
      if (shared[i].touched > most) most = shared[i].touched;
    }
    // Complete and, after that was seen, nobody has died: all of it at once.
    if (complete) {
      sleepMs(50);
      for (pid_t pid : pids) {
        siginfo_t info{};
        bool dead = waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) < 0 ||
                    info.si_pid != 0;
        complete = complete && !dead;
      }
      if (complete) {
        together = sum;
        break;
      }
    }
    int finished = 0;
    for (int i = 0; i < kChildren; ++i) finished += shared[i].complete;
    if (finished + killed >= kChildren && killed > 0) break;
    sleepMs(2);
  }
  *leave = 1;
  int refused = 0;
  for (int i = 0; i < kChildren; ++i) {
    if (pids[i] > 0) {
      int status = 0;
      if (waitpid(pids[i], &status, 0) == pids[i]) killed += WIFSIGNALED(status);
    }
    refused += shared[i].failed != 0;
  }
  report({{"together", together}, {"killed", killed}, {"refused", refused}, {"most_of_one", most}});
}

// sysv_shm BYTES
//
// Memory that belongs to nobody: a System V segment outlives its maker.
void sysvShm(const Arguments& arguments) {
  constexpr long long kSegment = 16 * kMiB;
  long long wanted = arguments.number(0, 256 * kMiB);
  long long held = 0;
  int error = 0;
  while (held < wanted) {
    int id = shmget(IPC_PRIVATE, kSegment, IPC_CREAT | 0600);
    if (id < 0) {
      error = errno;
      break;
    }
    void* memory = shmat(id, nullptr, 0);
    // Outside of a sandbox it goes with this process.
    if (!arguments.armed) shmctl(id, IPC_RMID, nullptr);
    if (memory == reinterpret_cast<void*>(-1)) {
      error = errno;
      break;
    }
    for (long long at = 0; at < kSegment; at += kMiB) {
      memset(static_cast<char*>(memory) + at, 1, kMiB);
      held += kMiB;
    }
    report({{"held", held}});
  }
  report({{"held", held}, {"error", error}});
}

}  // namespace cordon::escape_programs
