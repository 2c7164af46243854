#include "frontend/agents/backend.h"

#include "jailer/seccomp_answer.h"
#include "jailer/seccomp_profile.h"

namespace cordon::agents {
namespace {

constexpr size_t kMostSandboxes = 4096;

}  // namespace

uint64_t LeftRunning::of(const std::string& sandbox) const {
  auto found = counts_.find(sandbox);
  return found == counts_.end() ? 0 : found->second;
}

void LeftRunning::add(const std::string& sandbox, uint64_t processes) {
  if (processes == 0) return;
  // Sandboxes also end without us.
  if (counts_.size() >= kMostSandboxes) counts_.clear();
  counts_[sandbox] += processes;
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

Profiles compileProfiles() {
  Profiles profiles;
  for (const auto& name : jailer::profileNames()) {
    profiles[name] = std::make_shared<const std::vector<sock_filter>>(
        jailer::programOf(jailer::compileProfile(name)));
  }
  return profiles;
}

Program Backend::profile(const std::string& name) const {
  auto found = profiles_.find(name);
  return found == profiles_.end() ? nullptr : found->second;
}

void Backend::taskFailed(kj::Exception&& exception) {
  log->error("internal: a task failed: {}", exception.getDescription().cStr());
}

}  // namespace cordon::agents
