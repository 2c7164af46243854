// Any text into the parsers of /proc/PID: what they accept is within the limits
// and holds nothing that a terminal or a client could stumble over.
#include <string>
#include <string_view>

#include "broker/kernel_facts.h"
#include "tests/fuzz/fuzz.h"

using namespace cordon::broker;

namespace {

void mustBePlain(const std::string& text) {
  for (char c : text) {
    if (c < 0x20 || c > 0x7e) __builtin_trap();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  if (auto mounts = parseMountInfo(text)) {
    if (mounts->size() > kMostMountFacts) __builtin_trap();
    for (auto& mount : *mounts) {
      for (auto* each :
           {&mount.root, &mount.where, &mount.flags, &mount.type, &mount.source, &mount.options}) {
        mustBePlain(*each);
      }
    }
  }
  if (auto status = parseStatus(text)) {
    if (status->pidLevels == 0) __builtin_trap();
  }
  if (auto map = parseIdMap(text)) {
    if (map->size() > kMostIdMapLines) __builtin_trap();
  }
  if (auto limits = parseRlimits(text)) {
    if (limits->size() > kMostRlimits) __builtin_trap();
    for (auto& limit : *limits) {
      if (limit.name.empty() || limit.soft.empty() || limit.hard.empty()) __builtin_trap();
      for (auto* each : {&limit.name, &limit.soft, &limit.hard, &limit.unit}) mustBePlain(*each);
    }
  }
  if (auto interfaces = parseInterfaces(text)) {
    if (interfaces->size() > kMostInterfaces) __builtin_trap();
    for (auto& interface : *interfaces) {
      if (interface.name.empty()) __builtin_trap();
      mustBePlain(interface.name);
    }
  }
  return 0;
}

std::vector<std::string> cordon::fuzz::corpus() {
  return {
      "97 102 0:40 /images/a\\040b / ro,nosuid,nodev - tmpfs cordon rw,size=262144k\n"
      "137 136 0:6 /null /dev/null rw shared:4 master:7 - devtmpfs devtmpfs rw\n",
      "Name:\tx\nUid:\t1\t1\t1\t1\nGid:\t1\t1\t1\t1\nNSpid:\t5\t1\nCapInh:\t0\nCapPrm:\te0\n"
      "CapEff:\te0\nCapBnd:\te0\nCapAmb:\te0\nNoNewPrivs:\t1\nSeccomp:\t2\nSeccomp_filters:\t3\n",
      "         0 1882980352      65536\n",
      "Limit                     Soft Limit           Hard Limit           Units     \n"
      "Max core file size        1                    unlimited            bytes     \n"
      "Max nice priority         0                    0                    \n",
      "Inter-|   Receive\n face |bytes\n    lo: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n"};
}

void cordon::fuzz::repair(std::string&) {}
