// The step times in the broker's log lines.
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cordon::bench {

class StepTable {
 public:
  // Of a line about a sandbox that became ready or was destroyed; others are
  // passed over.
  void add(std::string_view line);

  // "create: cgroups" with its samples in ms, in the order of the pipelines.
  const std::vector<std::pair<std::string, std::vector<double>>>& steps() const { return table; }

 private:
  void add(const std::string& name, double ms);
  std::vector<std::pair<std::string, std::vector<double>>> table;
};

}  // namespace cordon::bench
