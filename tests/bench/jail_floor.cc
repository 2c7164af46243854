// Sets the stage for clone-floor and becomes its parent: the image that a
// sandbox has (host-usr), and the agent's filter.
//
//   jail-floor CLONE-FLOOR INIT      both static programs; stdin and stdout are clone-floor's
//
// Ends with it and leaves nothing. Needs root.
#include <kj/async-io.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

#include "jailer/seccomp.h"
#include "runtimes/images.h"
#include "runtimes/kernel_paths.h"
#include "tests/bench/workspace.h"

extern char** environ;

namespace {

int measure(const std::string& floor, const std::string& init) {
  auto io = kj::setupAsyncIo();
  cordon::bench::Workspace workspace;
  auto images = cordon::runtimes::ImageStore::open(workspace.path + "/images", {}, init,
                                                   io.provider->getTimer());
  KJ_DEFER(images->removeAll());
  auto resolved = images->resolve("", false).wait(io.waitScope);
  if (resolved.is<cordon::runtimes::ImageRefusal>()) {
    throw std::runtime_error(resolved.get<cordon::runtimes::ImageRefusal>().detail);
  }
  auto image = resolved.get<std::shared_ptr<const cordon::runtimes::Image>>();
  auto filter = cordon::jailer::compileAgentProfile().bpf;

  std::vector<std::string> argv = {
      floor, image->rootfs,
      "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(filter.get()), init};
  auto cpus = static_cast<unsigned>(std::max(1L, sysconf(_SC_NPROCESSORS_CONF)));
  for (const auto& path : cordon::runtimes::maskedPaths(cpus)) argv.push_back(path.substr(1));
  std::vector<char*> arguments;
  for (auto& a : argv) arguments.push_back(a.data());
  arguments.push_back(nullptr);
  pid_t child = -1;
  int error = posix_spawn(&child, floor.c_str(), nullptr, nullptr, arguments.data(), environ);
  if (error != 0) throw std::system_error(error, std::generic_category(), floor);
  int status = 0;
  if (waitpid(child, &status, 0) < 0) cordon::bench::fail("waitpid");
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: jail-floor CLONE-FLOOR INIT\n";
    return 2;
  }
  try {
    return measure(argv[1], argv[2]);
  } catch (const kj::Exception& error) {
    std::cerr << "jail-floor: " << error.getDescription().cStr() << '\n';
  } catch (const std::exception& error) {
    std::cerr << "jail-floor: " << error.what() << '\n';
  }
  return 1;
}
