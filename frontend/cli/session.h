// One program of `run` or `exec`, between the service and this terminal.
#pragma once
#include <functional>

#include "frontend/cli/client.h"
#include "frontend/cli/flags.h"

namespace cordon::cli {

// Serves the program's streams (standard input as the flags say; output to
// ours, unmodified, or collected for JSON), makes SIGINT and SIGTERM cancel it,
// prints what is to be said at the end, and returns the exit status.
int serve(const ExecFlags& flags,
          const std::function<client::Outcome(const client::Streams&)>& start);

}  // namespace cordon::cli
