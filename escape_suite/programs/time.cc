// More time than the program was given.
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "escape_suite/programs/program.h"

namespace cordon::escape_programs {
namespace {

constexpr int kBurners = 4;

long long ownCpuMs() {
  timespec used{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<long long>(used.tv_sec) * 1000 + used.tv_nsec / 1'000'000;
}

[[noreturn]] void burn(volatile long long* burned, long long each) {
  volatile unsigned long long sink = 0;
  while (*burned < each) {
    for (int i = 0; i < 200'000; ++i) sink = sink + static_cast<unsigned long long>(i);
    *burned = ownCpuMs();
  }
  _exit(0);
}

long long sum(const volatile long long* burned) {
  long long total = 0;
  for (int i = 0; i < kBurners; ++i) total += burned[i];
  return total;
}

}  // namespace

// cpu MS
//
// In several processes: a limit per process is not a limit on what a program
// uses.
void burnCpu(const Arguments& arguments) {
  long long wanted = arguments.number(0, 30'000);
  auto* burned = static_cast<volatile long long*>(sharedMemory(4096));
  if (burned == nullptr) {
    report({{"shared_memory", errno}});
    return;
  }
  int started = 0;
  for (int i = 0; i < kBurners; ++i) {
    pid_t child = fork();
    if (child == 0) burn(&burned[i], wanted / kBurners);
    started += child > 0;
  }
  int left = started;
  while (left > 0) {
    report({{"burned_ms", sum(burned)}});
    sleepMs(50);
    while (left > 0 && waitpid(-1, nullptr, WNOHANG) > 0) --left;
  }
  report({{"burned_ms", sum(burned)}, {"wanted_ms", wanted}, {"started", started}});
}

// sleep MS
void sleepForever(const Arguments& arguments) {
  long long wanted = arguments.number(0, 60'000);
  long long start = monotonicMs();
  long long slept = 0;
  while (slept < wanted) {
    sleepMs(100);
    slept = monotonicMs() - start;
    report({{"slept_ms", slept}});
  }
  report({{"wanted_ms", wanted}});
}

}  // namespace cordon::escape_programs
