#include "frontend/agents/backend.h"

namespace cordon::agents {
namespace {

constexpr size_t kMostKnown = 4096;

}  // namespace

KnownSandbox* KnownSandboxes::find(const std::string& name) {
  auto found = known_.find(name);
  return found == known_.end() ? nullptr : &found->second;
}

KnownSandbox& KnownSandboxes::put(rpc::SandboxInfo::Reader info) {
  // Sandboxes also end without us; they are asked for again when they have not.
  if (known_.size() >= kMostKnown) known_.clear();
  auto& known = known_[info.getName()];
  known.limits = fromRpc(info.getLimits());
  known.hostRuntime = info.getRuntime() == "host";
  return known;
}

void Backend::start(const std::string& brokerPath) {
  tasks_ = kj::heap<kj::TaskSet>(static_cast<kj::TaskSet::ErrorHandler&>(*this));
  auto onChange = [logger = log](bool up, const std::string& error) {
    if (up) {
      logger->info("connected to the broker");
    } else {
      logger->warn("no broker: {}", error);
    }
  };
  link = kj::heap<link::BrokerLink>(loop.io(),
                                    link::BrokerLink::Options{brokerPath, std::move(onChange)});
}

void Backend::stop() {
  tasks_ = nullptr;
  link = nullptr;
}

void Backend::taskFailed(kj::Exception&& exception) {
  log->error("internal: a task failed: {}", exception.getDescription().cStr());
}

}  // namespace cordon::agents
