// The programs of the suite: what each is about, its limits and its arguments.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "escape_suite/predicates.h"

namespace cordon::escape {

// What only the runner knows, for the arguments of the programs that need it.
struct Places {
  int tcpPort = 0;
  std::string abstractName;
  int vsockPort = 0;
  std::vector<std::string> addresses;  // ADDRESS, PORT, ADDRESS, PORT, ...
  std::vector<std::string> files;      // paths on the host
  std::string nonce;
};

struct SuiteRow {
  const char* program;
  const char* aim;  // for --list
  bool extended = false;
  // Harmful where nothing contains it: never run on `host`.
  bool sandboxOnly = false;
  RowLimits limits;
  // False: facts on stdout. True: on stderr, since stdout is the attack.
  bool factsOnStderr = false;
  std::vector<std::string> (*arguments)(const RowLimits&, const Places&) = nullptr;
};

// The thirteen first, then the extended set, in the order of the table.
const std::vector<SuiteRow>& suite();
const SuiteRow* findRow(std::string_view program);

}  // namespace cordon::escape
