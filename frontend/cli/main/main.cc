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
  using namespace cordon::cli;
  std::vector<std::unique_ptr<Command>> commands;
  commands.push_back(makeRunCommand());
  commands.push_back(makeAcquireCommand());
  commands.push_back(makeExecCommand());
  commands.push_back(makeReleaseCommand());
  commands.push_back(makeInspectCommand());
  commands.push_back(makeListCommand());
  commands.push_back(makeRuntimesCommand());
  commands.push_back(makeUpCommand());
  commands.push_back(makeEscapeCommand());
  commands.push_back(makeBenchCommand());
  return runCommandLine(std::move(commands), {argv + 1, argv + argc});
}
