// Where a program's own arguments begin on cordon's command line.
#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace cordon::cli {

struct SplitLine {
  std::vector<std::string> ours;     // for CLI11
  std::vector<std::string> program;  // argv of the program, untouched
};

// The program begins after `--`, or at the first word that is neither a flag
// of `command`, nor a flag's value, nor one of the `positionals` words that the
// command itself takes first. What belongs to the program is never read as a
// flag of ours.
SplitLine splitAtProgram(const CLI::App& command, const std::vector<std::string>& words,
                         size_t positionals);

}  // namespace cordon::cli
