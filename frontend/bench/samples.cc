#include "frontend/bench/samples.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace cordon::bench {

double quantile(std::vector<double> samples, double fraction) {
  if (samples.empty()) throw std::invalid_argument("no samples");
  auto rank = static_cast<size_t>(std::ceil(fraction * static_cast<double>(samples.size())));
  rank = std::clamp<size_t>(rank, 1, samples.size());
  auto nth = samples.begin() + static_cast<std::ptrdiff_t>(rank - 1);
  std::nth_element(samples.begin(), nth, samples.end());
  return *nth;
}

}  // namespace cordon::bench
