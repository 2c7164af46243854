// vm-agent's configuration message.
#include <capnp/serialize.h>
#include <kj/debug.h>

#include <cstdlib>

#include "tests/fuzz/fuzz.h"
#include "vm_agent/config.h"

namespace cordon::fuzz {

std::vector<std::string> corpus() {
  capnp::MallocMessageBuilder message;
  auto config = message.initRoot<guest::AgentConfig>();
  config.setJoin(guest::JoinMode::CGROUP_V2);
  config.setSwitchUser(true);
  config.setDefaultUid(1000);
  config.setAgentUid(65000);
  config.setWorkDir("/work");
  auto scratch = config.initScratch(2);
  scratch.set(0, "/work");
  scratch.set(1, "/tmp");
  config.setMaxExecs(16);
  auto words = capnp::messageToFlatArray(message);
  auto bytes = words.asBytes();
  return {{reinterpret_cast<const char*>(bytes.begin()), bytes.size()}};
}

void repair(std::string& input) {
  input.resize((input.size() + 7) / 8 * 8);
}

}  // namespace cordon::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cordon;
  auto failure = kj::runCatchingExceptions([&]() {
    auto config = agent::readConfig({data, size}, nullptr);
    bool good = config.workDir.starts_with("/") && config.scratch.size() <= 8 &&
                config.maxExecs >= 1 && config.maxExecs <= 64;
    if (!good) abort();
  });
  static_cast<void>(failure);
  return 0;
}
