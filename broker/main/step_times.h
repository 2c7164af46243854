// How long each step of a pipeline took, for its log line.
#pragma once
#include <spdlog/fmt/fmt.h>
#include <time.h>

#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>

namespace cordon::broker {

class StepTimes {
 public:
  StepTimes() : start_(now()), last_(start_) {}
  void done(const char* step) {
    int64_t t = now();
    add(step, t - last_);
    last_ = t;
  }
  // A part of the step that is under way, measured by somebody else.
  void part(const std::string& name, int64_t nanoseconds) { add(name, nanoseconds); }
  // "probe 0.012, image 0.034, ... = 2.345 ms"
  std::string text() const { return fmt::format("{} = {:.3f} ms", text_, ms(last_ - start_)); }

 private:
  static int64_t now() {
    timespec t{};
    clock_gettime(CLOCK_MONOTONIC, &t);
    return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
  }
  void add(std::string_view name, int64_t ns) {
    fmt::format_to(std::back_inserter(text_), "{}{} {:.3f}", text_.empty() ? "" : ", ", name,
                   ms(ns));
  }
  static double ms(int64_t ns) { return static_cast<double>(ns) / 1e6; }

  int64_t start_, last_;
  std::string text_;
};

}  // namespace cordon::broker
