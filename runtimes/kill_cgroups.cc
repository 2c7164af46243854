#include "runtimes/kill_cgroups.h"

#include <signal.h>
#include <spdlog/spdlog.h>

namespace cordon::runtimes {

kj::Promise<void> killCgroups(broker::SandboxCgroups& cgroups, broker::Children& children,
                              kj::Timer& timer, const std::string& name, unsigned attempts) {
  constexpr kj::Duration kPause = 2 * kj::MILLISECONDS;
  children.reapStrays();
  if (cgroups.killPass()) return kj::READY_NOW;
  if (attempts == 0) {
    spdlog::error("{}: processes of a failed create are left", name);
    return kj::READY_NOW;
  }
  return timer.afterDelay(kPause).then([&cgroups, &children, &timer, &name, attempts]() {
    return killCgroups(cgroups, children, timer, name, attempts - 1);
  });
}

kj::Promise<void> killProgram(broker::Child& program, kj::Timer& timer, kj::Duration atMost) {
  // Not reaped yet: the number is its.
  if (program.exited() == nullptr) kill(-program.pid(), SIGKILL);
  return program.onExit().ignoreResult().exclusiveJoin(timer.afterDelay(atMost));
}

}  // namespace cordon::runtimes
