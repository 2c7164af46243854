// The `cordon` command: its subcommands, wired together.
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "frontend/cli/main/suites.h"

namespace {

// A standard descriptor that was closed would be the next file's or socket's, and
// is one of gRPC's by now, whose libraries open theirs before main. Nobody hands
// us a descriptor without a file.
bool isStandard(int fd) {
  char target[32] = {};
  std::string path = "/proc/self/fd/" + std::to_string(fd);
  if (readlink(path.c_str(), target, sizeof(target) - 1) < 0) return false;
  return strncmp(target, "anon_inode:", 11) != 0;
}

// Starts again with /dev/null in their places, since they can't be taken away
// from a library that holds them.
void openStandardDescriptors(char** argv) {
  bool good = true;
  for (int fd : {0, 1, 2}) {
    if (isStandard(fd)) continue;
    good = false;
    int null = open("/dev/null", O_RDWR);
    if (null < 0 || (null != fd && (dup2(null, fd) < 0 || close(null) < 0))) _exit(126);
  }
  if (!good) execv("/proc/self/exe", argv);
}

}  // namespace

int main(int argc, char** argv) {
  openStandardDescriptors(argv);
  // Whoever ignores it passes that on, and then nothing can be waited for.
  signal(SIGCHLD, SIG_DFL);
  std::vector<std::unique_ptr<cordon::cli::Command>> commands;
  commands.push_back(cordon::cli::makeRunCommand());
  commands.push_back(cordon::cli::makeAcquireCommand());
  commands.push_back(cordon::cli::makeExecCommand());
  commands.push_back(cordon::cli::makeReleaseCommand());
  commands.push_back(cordon::cli::makeInspectCommand());
  commands.push_back(cordon::cli::makeListCommand());
  commands.push_back(cordon::cli::makeSnapshotCommand());
  commands.push_back(cordon::cli::makeSnapshotsCommand());
  commands.push_back(cordon::cli::makeRuntimesCommand());
  commands.push_back(cordon::cli::makeUpCommand());
  commands.push_back(cordon::cli::makeEscapeCommand());
  commands.push_back(cordon::cli::makeBenchCommand());
  return cordon::cli::runCommandLine(std::move(commands), {argv + 1, argv + argc});
}
