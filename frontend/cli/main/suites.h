// The subcommands that call the escape suite and the benchmarks. They are apart
// from the others because those libraries use the client of frontend/cli.
#pragma once
#include "frontend/cli/command.h"

namespace cordon::cli {

std::unique_ptr<Command> makeEscapeCommand();
std::unique_ptr<Command> makeBenchCommand();

}  // namespace cordon::cli
