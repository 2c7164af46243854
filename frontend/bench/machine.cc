// The machine that the figures are of.
#include <sys/utsname.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <memory>

#include "frontend/bench/internal.h"

namespace cordon::bench {

namespace {

std::string cpuModel() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown CPU";
}

// The first line that `runc --version` prints.
std::string runcVersion(const std::string& runc) {
  if (runc.empty()) return "no runc";
  struct Close {
    void operator()(FILE* file) const { pclose(file); }
  };
  // The path is the user's own or one of ours; quoted for spaces.
  std::unique_ptr<FILE, Close> pipe(popen(("'" + runc + "' --version 2>&1").c_str(), "re"));
  char line[256] = "";
  if (!pipe || !std::fgets(line, sizeof line, pipe.get())) return "no runc";
  std::string text = line;
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text;
}

}  // namespace

Machine readMachine(const std::string& runc) {
  Machine machine;
  machine.cpu = cpuModel();
  machine.runc = runcVersion(runc);
  utsname names{};
  uname(&names);
  machine.kernel = names.release;
  machine.cpus = static_cast<unsigned>(sysconf(_SC_NPROCESSORS_ONLN));
  machine.memoryBytes =
      static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return machine;
}

}  // namespace cordon::bench
