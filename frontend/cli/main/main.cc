// The `cordon` command: its subcommands, wired together.
#include <fcntl.h>
#include <unistd.h>

#include "frontend/cli/main/suites.h"

namespace {

// A standard descriptor that was closed would be the next file's or socket's.
void openStandardDescriptors() {
  int fd;
  do {
    fd = open("/dev/null", O_RDWR);
  } while (fd >= 0 && fd <= 2);
  if (fd > 2) close(fd);
}

}  // namespace

int main(int argc, char** argv) {
  openStandardDescriptors();
  std::vector<std::unique_ptr<cordon::cli::Command>> commands;
  commands.push_back(cordon::cli::makeRunCommand());
  commands.push_back(cordon::cli::makeAcquireCommand());
  commands.push_back(cordon::cli::makeExecCommand());
  commands.push_back(cordon::cli::makeReleaseCommand());
  commands.push_back(cordon::cli::makeInspectCommand());
  commands.push_back(cordon::cli::makeListCommand());
  commands.push_back(cordon::cli::makeRuntimesCommand());
  commands.push_back(cordon::cli::makeUpCommand());
  commands.push_back(cordon::cli::makeEscapeCommand());
  commands.push_back(cordon::cli::makeBenchCommand());
  return cordon::cli::runCommandLine(std::move(commands), {argv + 1, argv + argc});
}
