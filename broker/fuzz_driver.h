// The standalone driver of a fuzz target: mutates a few seeds for a fixed count
// of runs with a fixed seed of its own, so that a failure repeats. `PROGRAM
// RUNS [SEED]`; `PROGRAM @FILE...` replays files. Built with libFuzzer
// (-DCORDON_LIBFUZZER) there is no main here.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace cordon::broker::fuzz {

inline void runOne(const std::string& input) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
}

inline std::string mutate(std::string input, std::mt19937_64& random) {
  auto below = [&](size_t n) { return n == 0 ? 0 : static_cast<size_t>(random() % n); };
  for (size_t i = 0, steps = 1 + below(8); i < steps; ++i) {
    size_t at = below(input.size() + 1);
    switch (below(6)) {
      case 0:
        input.insert(at, 1, static_cast<char>(random()));
        break;
      case 1:
        if (!input.empty()) input.erase(below(input.size()), 1 + below(8));
        break;
      case 2:
        if (!input.empty()) input[below(input.size())] = static_cast<char>(random());
        break;
      case 3:
        if (!input.empty()) {
          char& c = input[below(input.size())];
          c = static_cast<char>(c ^ (1 << below(8)));
        }
        break;
      case 4:
        input.resize(at);
        break;
      default:
        if (!input.empty()) input.insert(at, input.substr(below(input.size()), below(16)));
        break;
    }
  }
  if (input.size() > 128 * 1024) input.resize(128 * 1024);
  return input;
}

inline int drive(int argc, char** argv, const std::vector<std::string>& seeds) {
  if (argc > 1 && argv[1][0] == '@') {
    for (int i = 1; i < argc; ++i) {
      std::ifstream file(argv[i] + (argv[i][0] == '@'), std::ios::binary);
      runOne({std::istreambuf_iterator<char>(file), {}});
    }
    return 0;
  }
  unsigned long runs = argc > 1 ? strtoul(argv[1], nullptr, 10) : 20000;
  std::mt19937_64 random(argc > 2 ? strtoul(argv[2], nullptr, 10) : 1);
  for (auto& seed : seeds) runOne(seed);
  for (unsigned long i = 0; i < runs; ++i) {
    runOne(mutate(seeds[static_cast<size_t>(random() % seeds.size())], random));
  }
  printf("%lu inputs\n", runs);
  return 0;
}

}  // namespace cordon::broker::fuzz

#ifdef CORDON_LIBFUZZER
#define CORDON_FUZZ_DRIVER(...)
#else
#define CORDON_FUZZ_DRIVER(...)                                                           \
  int main(int argc, char** argv) {                                                       \
    return cordon::broker::fuzz::drive(argc, argv, std::vector<std::string> __VA_ARGS__); \
  }
#endif
