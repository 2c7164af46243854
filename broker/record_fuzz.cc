// Any bytes into the record decoder: what it accepts must be writable again and
// read back the same.
#include <string>

#include "broker/records.h"
#include "tests/fuzz/fuzz.h"

using namespace cordon::broker;

namespace {

std::string seed(bool full) {
  SandboxRecord r;
  r.name = "sb-abcdefghij";
  r.bootId = "01234567-89ab-cdef-0123-456789abcdef";
  if (full) {
    r.runtime = "runc";
    r.image = "host-usr";
    r.tokenHash = std::string(64, '0');
    r.directory = "/run/cordon/x/sandboxes/sb-abcdefghij";
    r.cgroup = "/cordon/x/sb-abcdefghij";
    r.idSlot = 1;
    r.idCount = 65536;
    r.left = {{"cgroup", "memory:/cordon/x", 16}, {"process", "17", 1}};
  }
  auto bytes = encodeRecord(r);
  return {reinterpret_cast<const char*>(bytes.begin()), bytes.size()};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string damage;
  auto decoded = decodeRecord(kj::ArrayPtr<const kj::byte>(data, size), damage);
  KJ_IF_MAYBE (record, decoded) {
    if (!damage.empty() || !isRecordName(record->name)) __builtin_trap();
    auto again = encodeRecord(*record);
    auto second = decodeRecord(again, damage);
    KJ_IF_MAYBE (same, second) {
      if (same->name != record->name || same->directory != record->directory ||
          same->left.size() != record->left.size() || same->idSlot != record->idSlot) {
        __builtin_trap();
      }
    } else {
      __builtin_trap();
    }
  } else if (damage.empty()) {
    __builtin_trap();
  }
  return 0;
}

std::vector<std::string> cordon::fuzz::corpus() {
  return {seed(true), seed(false), std::string(64, '\0')};
}

void cordon::fuzz::repair(std::string&) {}
