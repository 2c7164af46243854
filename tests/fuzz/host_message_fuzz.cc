// vm-agent's side: frames with HostMessages, and the check of a `start`.
#include <capnp/serialize.h>
#include <kj/debug.h>

#include "ipc/guest.capnp.h"
#include "tests/fuzz/frame_input.h"
#include "tests/fuzz/fuzz.h"
#include "vm_agent/request.h"

namespace cordon::fuzz {

namespace {

agent::Config config() {
  agent::Config config;
  config.switchUser = true;
  config.defaultUser = {1000, 1000};
  config.agentUid = 65000;
  config.files = 100;
  config.deadlineMs = 60000;
  config.outputBytes = 1 << 20;
  return config;
}

void checkStart(guest::Start::Reader start) {
  static const agent::Config limits = config();
  auto result = agent::checkRequest(start, limits);
  if (result.error != 0) return;
  auto& request = result.request;
  // What is accepted keeps what was promised.
  bool good = request.argv.size() >= 1 && request.argv.size() <= guest::MAX_STRINGS &&
              request.env.size() <= guest::MAX_STRINGS && request.files <= 100 &&
              request.deadlineMs <= 60000 && request.outputBytes <= 1 << 20 &&
              request.user.uid < 65536 && request.user.gid < 65536 && request.user.uid != 65000 &&
              request.cwd.find('\0') == std::string::npos && request.searchPath() != nullptr;
  size_t bytes = 0;
  for (char* const* at = request.argv.pointers(); *at != nullptr; ++at) bytes += strlen(*at) + 1;
  for (char* const* at = request.env.pointers(); *at != nullptr; ++at) {
    bytes += strlen(*at) + 1;
    good = good && strchr(*at + 1, '=') != nullptr;
  }
  if (!good || bytes > guest::MAX_ARG_ENV_BYTES) abort();
}

void walk(kj::ArrayPtr<const capnp::word> words) {
  capnp::FlatArrayMessageReader message(words, ipc::readerOptions(words.asBytes().size()));
  auto root = message.getRoot<guest::HostMessage>();
  switch (root.which()) {
    case guest::HostMessage::START:
      return checkStart(root.getStart());
    case guest::HostMessage::STDIN: {
      uint32_t sum = 0;
      for (auto byte : root.getStdin().getBytes()) sum += byte;
      if (sum == UINT32_MAX) abort();
      return;
    }
    default:
      return;
  }
}

}  // namespace

std::vector<std::string> corpus() {
  std::vector<std::string> inputs;
  auto add = [&](auto&& fill) {
    capnp::MallocMessageBuilder message;
    fill(message.initRoot<guest::HostMessage>());
    inputs.push_back(frame(message));
  };
  auto bytes = [](const char* text) {
    return capnp::Data::Reader(reinterpret_cast<const kj::byte*>(text), strlen(text));
  };
  add([&](guest::HostMessage::Builder message) {
    auto start = message.initStart();
    start.setExec(1);
    auto argv = start.initArgv(3);
    argv.set(0, bytes("sh"));
    argv.set(1, bytes("-c"));
    argv.set(2, bytes("echo hello"));
    auto env = start.initEnv(2);
    env.set(0, bytes("PATH=/usr/bin:/bin"));
    env.set(1, bytes("HOME=/work"));
    start.setCwd(bytes("sub"));
    start.setUser("1000:1000");
    start.setFiles(100);
    start.setDeadlineMs(1000);
    start.setStdin(true);
  });
  add([&](guest::HostMessage::Builder message) {
    auto start = message.initStart();
    start.initArgv(1).set(0, bytes("true"));
    start.setUser("daemon");
  });
  add([&](guest::HostMessage::Builder message) {
    auto in = message.initStdin();
    in.setExec(1);
    in.setBytes(bytes("some input for the program\n"));
  });
  add([](guest::HostMessage::Builder message) { message.setCloseStdin(1); });
  add([](guest::HostMessage::Builder message) { message.initSignal().setSigno(15); });
  add([](guest::HostMessage::Builder message) { message.setKill(1); });
  std::string all;
  for (auto& input : inputs) all += input;
  inputs.push_back(all);
  return inputs;
}

void repair(std::string& input) {
  repairFrame(input);
}

}  // namespace cordon::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cordon;
  fuzz::readFrames(data, size, guest::MAX_START_BYTES, fuzz::walk);
  return 0;
}
