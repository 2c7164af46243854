// Any bytes as a jailer's spec: refused, or every field in its range.
#include <capnp/message.h>
#include <capnp/serialize.h>
#include <kj/exception.h>

#include <cstring>

#include "jailer/spec.h"
#include "tests/fuzz/fuzz.h"

using namespace cordon::jailer;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto words = kj::heapArray<capnp::word>(size / sizeof(capnp::word));
  memcpy(words.begin(), data, words.asBytes().size());
  auto broken = kj::runCatchingExceptions([&] {
    capnp::ReaderOptions options;
    options.nestingLimit = 8;
    capnp::FlatArrayMessageReader message(words, options);
    auto spec = message.getRoot<JailSpec>();
    if (whatIsWrong(spec) != nullptr) return;
    if (spec.getIdFirst() < 65536 || spec.getAgentUid() == 0) __builtin_trap();
    for (auto mount : spec.getMounts()) {
      kj::StringPtr where = mount.getWhere();
      if (where.size() == 0 || where[0] == '/' || strstr(where.cStr(), "..") != nullptr) {
        // "a..b" is a name like any other.
        if (where[0] == '/' || where.startsWith("../") || strstr(where.cStr(), "/../") != nullptr) {
          __builtin_trap();
        }
      }
    }
    for (auto mount : spec.getImage()) {
      kj::StringPtr where = mount.getWhere();
      if (where.startsWith("/") || where.startsWith("../") || strstr(where.cStr(), "/../")) {
        __builtin_trap();
      }
    }
  });
  static_cast<void>(broken);
  return 0;
}

std::vector<std::string> cordon::fuzz::corpus() {
  capnp::MallocMessageBuilder message;
  auto spec = message.initRoot<JailSpec>();
  spec.setVersion(SPEC_VERSION);
  spec.setHostname("sb-fuzz");
  spec.setIdFirst(1879048192);
  spec.setIdCount(65536);
  spec.setAgentUid(65000);
  spec.setAgentGid(65000);
  spec.setFiles(4096);
  spec.setCgroupFds(4);
  auto image = spec.initImage(2);
  image[0].setDirectory(true);
  image[1].setWhere("usr");
  image[1].setOwners(Owners::OWN);
  spec.setRootBytes(1 << 20);
  spec.setRootInodes(256);
  auto mounts = spec.initMounts(3);
  mounts[0].setWhere("proc");
  mounts[1].setKind(MountKind::DEVICE);
  mounts[1].setWhere("dev/null");
  mounts[2].setKind(MountKind::TMPFS);
  mounts[2].setWhere("work");
  auto option = mounts[2].initOptions(1)[0];
  option.setKey("size");
  option.setValue("65536");
  auto words = capnp::messageToFlatArray(message);
  auto bytes = words.asBytes();
  return {std::string(reinterpret_cast<const char*>(bytes.begin()), bytes.size())};
}

void cordon::fuzz::repair(std::string& input) {
  input.resize(input.size() / 8 * 8);
}
