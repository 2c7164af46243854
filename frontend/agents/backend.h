// What the calls of this process share, on the loop thread.
#pragma once
#include <kj/async.h>
#include <kj/debug.h>
#include <spdlog/logger.h>

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

#include "frontend/agents/descriptor_bin.h"
#include "frontend/agents/listener.h"
#include "frontend/link/broker_link.h"
#include "frontend/link/loop_thread.h"

namespace cordon::agents {

// Processes that ended execs left running, by sandbox, as its agent told: a
// hint for the verdict of later ones.
class LeftRunning {
 public:
  uint64_t of(const std::string& sandbox) const;
  void add(const std::string& sandbox, uint64_t processes);
  void forget(const std::string& sandbox) { counts_.erase(sandbox); }

 private:
  std::unordered_map<std::string, uint64_t> counts_;
};

// The seccomp profiles of workloads, by name.
using Profiles = std::unordered_map<std::string, Program>;
// 3 ms each, and with calls that a confined frontend has not.
Profiles compileProfiles();

struct Backend final : private kj::TaskSet::ErrorHandler {
  Backend(link::LoopThread& l, std::shared_ptr<spdlog::logger> logger, Profiles profiles)
      : loop(l), log(std::move(logger)), profiles_(std::move(profiles)) {}
  // Before it goes: stop(), on the loop.
  ~Backend() noexcept(false) {}
  KJ_DISALLOW_COPY(Backend);

  link::LoopThread& loop;
  std::shared_ptr<spdlog::logger> log;
  kj::Maybe<kj::Own<link::BrokerLink>> link;
  LeftRunning leftRunning;
  DescriptorBin bin;
  ExplainSlots explainSlots;
  // The seccomp profile of that name; null when there is none.
  Program profile(const std::string& name) const;

  // On the loop: connects to the broker, and ends all there is.
  void start(const std::string& brokerPath);
  void stop();

  // Lets `task` run to its end; it must not fail.
  void add(kj::Promise<void> task) { KJ_ASSERT_NONNULL(tasks_)->add(kj::mv(task)); }

  // Nothing while the broker is away.
  kj::Maybe<rpc::AgentPort::Client> port() {
    KJ_IF_MAYBE (l, link) return (*l)->port();
    return nullptr;
  }

 private:
  void taskFailed(kj::Exception&& exception) override;

  kj::Maybe<kj::Own<kj::TaskSet>> tasks_;
  const Profiles profiles_;
};

}  // namespace cordon::agents
