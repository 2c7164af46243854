#include "runtimes/kill_cgroups.h"

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

}  // namespace cordon::runtimes
