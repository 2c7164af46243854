// Order statistics of a row's samples.
#pragma once
#include <vector>

namespace cordon::bench {

// The smallest sample that at least `fraction` (0..1] of all do not exceed.
// Requires samples.
double quantile(std::vector<double> samples, double fraction);

inline double median(const std::vector<double>& samples) {
  return quantile(samples, 0.5);
}

}  // namespace cordon::bench
