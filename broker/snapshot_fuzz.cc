// Any bytes into the decoder of a snapshot's record: what it accepts must be
// writable again and read back the same.
#include <string>

#include "broker/snapshots.h"
#include "tests/fuzz/fuzz.h"

using namespace cordon::broker;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string damage;
  auto decoded = decodeSnapshot(kj::ArrayPtr<const kj::byte>(data, size), damage);
  KJ_IF_MAYBE (record, decoded) {
    if (!damage.empty() || !isSnapshotName(record->name)) __builtin_trap();
    auto again = encodeSnapshot(*record);
    auto second = decodeSnapshot(again, damage);
    KJ_IF_MAYBE (same, second) {
      if (encodeSnapshot(*same) != again) __builtin_trap();
    } else {
      __builtin_trap();
    }
  } else if (damage.empty()) {
    __builtin_trap();
  }
  return 0;
}

std::vector<std::string> cordon::fuzz::corpus() {
  SnapshotRecord record;
  record.name = "sn-abcdefghij";
  record.tokenHash = record.sha256 = std::string(64, 'a');
  record.machine = "x86_64";
  record.image = "host-usr";
  record.archiveBytes = 17;
  auto bytes = encodeSnapshot(record);
  return {{reinterpret_cast<const char*>(bytes.begin()), bytes.size()}, std::string(64, '\0')};
}

void cordon::fuzz::repair(std::string& input) {
  if (input.size() < 32) return;
  sealSnapshot({reinterpret_cast<kj::byte*>(input.data()), input.size()});
}
