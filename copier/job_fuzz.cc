// Any bytes into the decoder of a job.
#include "copier/job_file.h"
#include "tests/fuzz/fuzz.h"

using namespace cordon::copier;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Job job;
  std::vector<Root> roots;
  if (!decodeJob(reinterpret_cast<const char*>(data), size, job, roots)) return 0;
  auto again = encodeJob(job, roots);
  if (again.size() != size || std::string(again.begin(), again.end()) !=
                                  std::string(reinterpret_cast<const char*>(data), size)) {
    __builtin_trap();
  }
  return 0;
}

std::vector<std::string> cordon::fuzz::corpus() {
  auto bytes = encodeJob({}, {{0, ""}, {1, "usr"}, {3, "etc/ssl/certs"}});
  return {std::string(bytes.begin(), bytes.end())};
}

void cordon::fuzz::repair(std::string&) {}
