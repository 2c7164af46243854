// Runs a fuzz target without libFuzzer: fuzz_x COUNT [FILE]... replays the files
// and then makes COUNT inputs, which are the same every time.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

constexpr size_t kMaxInput = 4096;

void runOne(const std::string& input) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
}

// Pieces that the grammar is made of, besides any byte: random bytes alone
// would never come past the first word.
std::string makeInput(std::mt19937_64& random) {
  static constexpr std::string_view kPieces[] = {"FACT",
                                                 "FACT ",
                                                 " ",
                                                 "=",
                                                 "\n",
                                                 "a",
                                                 "a_b",
                                                 "try_x",
                                                 "=0\n",
                                                 "=1",
                                                 "=-1",
                                                 "-",
                                                 "0",
                                                 "9",
                                                 "9223372036854775807",
                                                 "-9223372036854775808",
                                                 "FACT a=1\n",
                                                 "FACT a=1 b=2\n"};
  std::string input;
  size_t pieces = random() % 24;
  for (size_t i = 0; i < pieces && input.size() < kMaxInput; ++i) {
    size_t choice = random() % (std::size(kPieces) + 2);
    if (choice < std::size(kPieces)) {
      input += kPieces[choice];
    } else if (choice == std::size(kPieces)) {
      input += static_cast<char>(random() & 0xff);
    } else if (!input.empty()) {
      input[random() % input.size()] = static_cast<char>(random() & 0xff);
    }
  }
  return input;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s COUNT [FILE]...\n", argv[0]);
    return 64;
  }
  for (int i = 2; i < argc; ++i) {
    std::ifstream file(argv[i], std::ios::binary);
    if (!file) {
      std::fprintf(stderr, "%s can't be read\n", argv[i]);
      return 1;
    }
    runOne(std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>()));
  }
  char* end = nullptr;
  unsigned long long count = std::strtoull(argv[1], &end, 10);
  if (end == argv[1] || *end != '\0') {
    std::fprintf(stderr, "not a count: %s\n", argv[1]);
    return 64;
  }
  // A fixed seed: a failure comes again.
  std::mt19937_64 random(1);
  for (unsigned long long i = 0; i < count; ++i) runOne(makeInput(random));
  std::printf("%llu inputs\n", count);
  return 0;
}
