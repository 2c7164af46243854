// How long one turn of the broker's loop takes.
//
// The broker is one thread: while one handler runs nobody else is served, no
// deadline fires and no CPU limit is watched. No turn may take longer than 5 ms.
// Every handler and continuation that makes system calls holds a Turn, so that
// one that took longer is named.
#pragma once
#include <kj/common.h>
#include <kj/time.h>

#include <cstdint>

namespace cordon::broker {

class TurnClock {
 public:
  static constexpr uint64_t kBudgetNs = 5'000'000;

  // Measures from its construction to its end; one inside another is part of
  // that. `name` is a literal.
  class Turn {
   public:
    Turn(TurnClock& clock, const char* name);
    ~Turn();
    KJ_DISALLOW_COPY(Turn);

   private:
    TurnClock& clock_;
    const char* name_;
    uint64_t startNs_;
    uint64_t startCpuNs_;
  };
  Turn turn(const char* name) { return Turn(*this, name); }

  struct Longest {
    const char* name = "";
    uint64_t wallNs = 0;
    uint64_t cpuNs = 0;  // of it, on a CPU: less means that the machine was busy
  };
  const Longest& longest() const { return longest_; }
  uint64_t turns() const { return turns_; }
  uint64_t overBudget() const { return over_; }
  // One line: how many turns, the longest, how many over budget.
  void log() const;

 private:
  void ended(const char* name, uint64_t wallNs, uint64_t cpuNs);

  Longest longest_;
  uint64_t turns_ = 0;
  uint64_t over_ = 0;
  int depth_ = 0;
};

}  // namespace cordon::broker
