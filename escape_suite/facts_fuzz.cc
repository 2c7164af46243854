// The reader of facts against any bytes: it must say a problem or give facts
// that its own grammar spells the same way again.
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "escape_suite/facts.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cordon::escape;
  Facts facts = parseFacts({reinterpret_cast<const char*>(data), size});
  if (!facts.problem.empty()) {
    if (!facts.items.empty()) abort();
    return 0;
  }
  for (const Fact& fact : facts.items) {
    Facts again = parseFacts("FACT " + fact.key + "=" + std::to_string(fact.value) + "\n");
    if (again.items.size() != 1 || again.items[0].value != fact.value ||
        again.items[0].key != fact.key) {
      std::fprintf(stderr, "not the same again: %s\n", fact.key.c_str());
      abort();
    }
    if (facts.most(fact.key) < fact.value) abort();
  }
  return 0;
}

// Mutations of these are what the grammar is made of.
std::vector<std::string> cordon::fuzz::corpus() {
  return {"FACT a=1 b=2\n",
          "FACT try_x=0\nFACT a_b=-1\n",
          "FACT a=9223372036854775807\n",
          "FACT a=-9223372036854775808 a=9\n",
          "FACT =\nFACT  a=\n",
          "no fact\nFACT a=1"};
}

void cordon::fuzz::repair(std::string&) {}
