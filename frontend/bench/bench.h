// The library behind `cordon bench`: measures the figures that the project
// promises, on this machine, each beside its baseline in the same run.
//
// A row that compares is measured interleaved with its baseline, sample by
// sample, so that a machine that slows down slows both. Rows that need raw runc
// need root; a row that can't be measured here says why and is not met.
//
//   Options options;
//   Report report = measure(options, [](std::string_view line) { std::cerr << line << '\n'; });
//   std::cout << (json ? asJson(report) : asTable(report));
//   return allMet(report) ? 0 : 1;
//
// Blocking; one thread calls it. Throws client::ApiError when the service is
// not there, std::runtime_error when a helper program fails.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cordon::bench {

struct Options {
  std::string address;            // of the service; "" = client::agentsAddress()
  std::string libexec;            // "" = libexec/cordon beside this program's bin
  std::string runc;               // "" = the first in the usual places
  std::vector<std::string> only;  // groups (groupNames()); empty = all
  unsigned samples = 300;         // of each row of times
  unsigned cycles = 0;            // of the group `cycles`, which is left out at 0
  std::string log;                // of the service, for the group `steps`; "" = left out
  uint64_t outputBytes = 4'000'000'000;
};

struct Row {
  std::string name;
  std::string unit;  // "ms", "MB/s", "KiB"
  unsigned n = 0;    // samples; 0 = could not be measured, see note
  double p50 = 0, p99 = 0;
  std::string baselineName;        // "" = none
  std::optional<double> baseline;  // p50 of the baseline, in `unit`
  std::optional<double> ratio;     // as `target` speaks of it
  std::string target;              // "" = none: shown for information
  std::optional<bool> met;
  std::string note;
};

struct Machine {
  std::string cpu, kernel, runc;
  unsigned cpus = 0;
  uint64_t memoryBytes = 0;
};

struct Report {
  Machine machine;
  std::vector<Row> rows;
};

using Progress = std::function<void(std::string_view line)>;

const std::vector<std::string>& groupNames();

Report measure(const Options& options, const Progress& progress);

// {machine, rows:[{name, unit, n, p50, p99, baseline, ratio, …}]}
std::string asJson(const Report& report);
std::string asTable(const Report& report);
// False also when a row with a target could not be measured.
bool allMet(const Report& report);

}  // namespace cordon::bench
