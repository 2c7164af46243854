// Runs a fuzzer without libFuzzer: its corpus, then mutations of it from a
// fixed seed, so that a run can be repeated.
//
//   x_fuzz            5000 inputs
//   x_fuzz COUNT      as many as one likes
//   x_fuzz FILE…      these inputs
//
// An input that crashes is written to crash-input in the current directory.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>

#include "tests/fuzz/fuzz.h"

namespace {

constexpr size_t kMaxInput = 256 * 1024;
constexpr unsigned long kDefaultCount = 5000;

// For the handler of a crash.
const std::string* current = nullptr;

extern "C" void onCrash(int signal) {
  int fd = open("crash-input", O_WRONLY | O_CREAT | O_TRUNC, 0644);
  ssize_t ignored = fd < 0 ? -1 : write(fd, current->data(), current->size());
  static_cast<void>(ignored);
  std::signal(signal, SIG_DFL);
  raise(signal);
}

class Mutator {
 public:
  explicit Mutator(std::vector<std::string> corpus) : corpus_(std::move(corpus)) {}

  std::string next() {
    std::string input = pick();
    for (size_t rounds = 1 + below(8); rounds > 0; --rounds) mutate(input);
    if (below(4) != 0) cordon::fuzz::repair(input);
    if (input.size() > kMaxInput) input.resize(kMaxInput);
    return input;
  }

 private:
  size_t below(size_t n) { return n == 0 ? 0 : random_() % n; }
  const std::string& pick() { return corpus_[below(corpus_.size())]; }

  void mutate(std::string& input) {
    static constexpr uint64_t kInteresting[] = {
        0, 1, 7, 8, 0x7f, 0x80, 0xff, 0xffff, 0x7fffffff, 0x80000000, 0xffffffff, UINT64_MAX};
    size_t at = below(input.size());
    size_t some = std::min(input.size() - at, 1 + below(16));
    switch (below(7)) {
      case 0:
        if (!input.empty()) input[at] = static_cast<char>(input[at] ^ (1 << below(8)));
        break;
      case 1:
        if (!input.empty()) input[at] = static_cast<char>(random_());
        break;
      case 2: {
        uint64_t value = kInteresting[below(std::size(kInteresting))];
        // Aligned, where numbers and pointers are.
        size_t size = size_t{1} << below(4);
        at = at / size * size;
        if (at + size <= input.size()) memcpy(input.data() + at, &value, size);
        break;
      }
      case 3:
        input.erase(at, some);
        break;
      case 4:
        input.insert(at, input.substr(at, some));
        break;
      case 5: {
        const std::string& other = pick();
        size_t from = below(other.size());
        input.insert(at, other.substr(from, 1 + below(64)));
        break;
      }
      case 6:
        input.resize(at);
        break;
    }
  }

  std::vector<std::string> corpus_;
  std::mt19937_64 random_{20261129};
};

void run(const std::string& input) {
  current = &input;
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
}

bool isNumber(const char* text) {
  return *text != '\0' && text[strspn(text, "0123456789")] == '\0';
}

}  // namespace

int main(int argc, char** argv) {
  for (int signal : {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL}) std::signal(signal, onCrash);
  if (argc > 1 && !isNumber(argv[1])) {
    for (int i = 1; i < argc; ++i) {
      std::ifstream in(argv[i], std::ios::binary);
      if (!in) {
        fprintf(stderr, "%s: can't be read\n", argv[i]);
        return 2;
      }
      run({std::istreambuf_iterator<char>(in), {}});
    }
    return 0;
  }
  unsigned long count = argc > 1 ? strtoul(argv[1], nullptr, 10) : kDefaultCount;
  auto corpus = cordon::fuzz::corpus();
  for (auto& input : corpus) run(input);
  Mutator mutator(corpus);
  for (unsigned long i = 0; i < count; ++i) run(mutator.next());
  printf("%zu corpus inputs, %lu mutations: no fault\n", corpus.size(), count);
  return 0;
}
