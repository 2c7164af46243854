// What a fuzzer is here: libFuzzer's entry point, and what the driver needs to
// run it without libFuzzer.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace cordon::fuzz {

// Valid inputs to start from; at least one.
std::vector<std::string> corpus();

// Puts right what mutation almost always breaks (a length, a magic number), so
// that the code behind it is reached as well. May do nothing.
void repair(std::string& input);

}  // namespace cordon::fuzz
