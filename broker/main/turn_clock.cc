#include "broker/main/turn_clock.h"

#include <spdlog/spdlog.h>
#include <time.h>

namespace cordon::broker {

namespace {
uint64_t now(clockid_t clock) {
  timespec t{};
  clock_gettime(clock, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(t.tv_nsec);
}
double ms(uint64_t ns) {
  return static_cast<double>(ns) / 1e6;
}
}  // namespace

TurnClock::Turn::Turn(TurnClock& clock, const char* name)
    : clock_(clock),
      name_(name),
      startNs_(now(CLOCK_MONOTONIC)),
      startCpuNs_(now(CLOCK_THREAD_CPUTIME_ID)) {
  ++clock_.depth_;
}

TurnClock::Turn::~Turn() {
  if (--clock_.depth_ > 0) return;
  clock_.ended(name_, now(CLOCK_MONOTONIC) - startNs_, now(CLOCK_THREAD_CPUTIME_ID) - startCpuNs_);
}

void TurnClock::ended(const char* name, uint64_t wallNs, uint64_t cpuNs) {
  ++turns_;
  if (wallNs > longest_.wallNs) longest_ = {name, wallNs, cpuNs};
  if (wallNs <= kBudgetNs) return;
  ++over_;
  spdlog::warn("a turn of the loop took {:.1f} ms ({:.1f} ms on the CPU): {}", ms(wallNs),
               ms(cpuNs), name);
}

void TurnClock::log() const {
  spdlog::info(
      "{} turns of the loop, the longest {:.2f} ms ({:.2f} ms on the CPU): {}; {} over 5 ms",
      turns_, ms(longest_.wallNs), ms(longest_.cpuNs), longest_.name, over_);
}

}  // namespace cordon::broker
