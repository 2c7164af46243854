// How long each step of a pipeline took, for its log line.
#pragma once
#include <spdlog/fmt/fmt.h>
#include <time.h>

#include <cstdint>
#include <string>

namespace cordon::broker {

class StepTimes {
 public:
  StepTimes() : start_(now()), last_(start_) {}
  void done(const char* step) {
    int64_t t = now();
    text_ += fmt::format("{}{} {:.1f}", text_.empty() ? "" : ", ", step, ms(t - last_));
    last_ = t;
  }
  // "probe 0.0, image 0.1, ... = 61.2 ms"
  std::string text() const { return fmt::format("{} = {:.1f} ms", text_, ms(last_ - start_)); }

 private:
  static int64_t now() {
    timespec t{};
    clock_gettime(CLOCK_MONOTONIC, &t);
    return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
  }
  static double ms(int64_t ns) { return static_cast<double>(ns) / 1e6; }

  int64_t start_, last_;
  std::string text_;
};

}  // namespace cordon::broker
