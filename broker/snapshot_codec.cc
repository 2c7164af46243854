// Records of snapshots as bytes, and back with every field checked.
#include <capnp/message.h>
#include <capnp/serialize.h>
#include <kj/debug.h>
#include <sha256.h>
#include <string.h>

#include "broker/limits_codec.h"
#include "broker/snapshot.capnp.h"
#include "broker/snapshots.h"
#include "broker/whole_message.h"

namespace cordon::broker {

namespace {

constexpr size_t kMostText = 1024;
constexpr size_t kHash = SHA256_DIGEST_LENGTH;  // at the end of the file

void hashOf(kj::ArrayPtr<const kj::byte> bytes, kj::byte* digest) {
  SHA2_CTX hash;
  SHA256Init(&hash);
  SHA256Update(&hash, bytes.begin(), bytes.size());
  SHA256Final(digest, &hash);
}

bool takeText(capnp::Text::Reader from, std::string& to) {
  if (from.size() > kMostText || memchr(from.begin(), 0, from.size()) != nullptr) return false;
  to.assign(from.begin(), from.size());
  return true;
}

bool isHexHash(const std::string& s) {
  return s.size() == 64 && s.find_first_not_of("0123456789abcdef") == std::string::npos;
}

std::string decodeFields(record::SnapshotRecord::Reader from, SnapshotRecord& to) {
  if (from.getVersion() != record::SNAPSHOT_VERSION) return "is of another version of cordon";
  bool texts = takeText(from.getMachine(), to.machine) && takeText(from.getName(), to.name) &&
               takeText(from.getTokenHash(), to.tokenHash) &&
               takeText(from.getSandbox(), to.sandbox) && takeText(from.getRuntime(), to.runtime) &&
               takeText(from.getImage(), to.image) &&
               takeText(from.getImageIdentity(), to.imageIdentity) &&
               takeText(from.getSeccomp(), to.seccomp) && takeText(from.getSha256(), to.sha256);
  if (!texts) return "has a text that is none";
  if (!isSnapshotName(to.name)) return "has no name";
  if (!isHexHash(to.tokenHash) || !isHexHash(to.sha256)) return "has a hash that is none";
  to.format = from.getFormat();
  to.ownerUid = from.getOwnerUid();
  to.createdUnixMs = from.getCreatedUnixMs();
  to.limits = decodeLimits(from.getLimits());
  to.archiveBytes = from.getArchiveBytes();
  to.dataBytes = from.getDataBytes();
  to.logicalBytes = from.getLogicalBytes();
  to.entries = from.getEntries();
  to.skippedSockets = from.getSkippedSockets();
  to.skippedDevices = from.getSkippedDevices();
  to.withoutXattrs = from.getWithoutXattrs();
  return "";
}

}  // namespace

kj::Array<kj::byte> encodeSnapshot(const SnapshotRecord& from) {
  capnp::MallocMessageBuilder message;
  auto to = message.initRoot<record::SnapshotRecord>();
  to.setVersion(record::SNAPSHOT_VERSION);
  to.setFormat(from.format);
  to.setMachine(from.machine);
  to.setName(from.name);
  to.setOwnerUid(from.ownerUid);
  to.setTokenHash(from.tokenHash);
  to.setSandbox(from.sandbox);
  to.setRuntime(from.runtime);
  to.setImage(from.image);
  to.setImageIdentity(from.imageIdentity);
  to.setSeccomp(from.seccomp);
  to.setCreatedUnixMs(from.createdUnixMs);
  encodeLimits(to.initLimits(), from.limits);
  to.setArchiveBytes(from.archiveBytes);
  to.setSha256(from.sha256);
  to.setDataBytes(from.dataBytes);
  to.setLogicalBytes(from.logicalBytes);
  to.setEntries(from.entries);
  to.setSkippedSockets(from.skippedSockets);
  to.setSkippedDevices(from.skippedDevices);
  to.setWithoutXattrs(from.withoutXattrs);
  auto words = capnp::messageToFlatArray(message);
  auto bytes = words.asBytes();
  auto whole = kj::heapArray<kj::byte>(bytes.size() + kHash);
  memcpy(whole.begin(), bytes.begin(), bytes.size());
  sealSnapshot(whole);
  return whole;
}

void sealSnapshot(kj::ArrayPtr<kj::byte> bytes) {
  KJ_REQUIRE(bytes.size() >= kHash);
  hashOf(bytes.slice(0, bytes.size() - kHash), bytes.end() - kHash);
}

kj::Maybe<SnapshotRecord> decodeSnapshot(kj::ArrayPtr<const kj::byte> bytes, std::string& damage) {
  damage.clear();
  if (bytes.size() > kMaxSnapshotRecordBytes || bytes.size() < 16 + kHash ||
      bytes.size() % 8 != 0) {
    damage = "has not a record's size";
    return nullptr;
  }
  auto hash = bytes.slice(bytes.size() - kHash, bytes.size());
  bytes = bytes.slice(0, bytes.size() - kHash);
  kj::byte expected[kHash];
  hashOf(bytes, expected);
  if (memcmp(expected, hash.begin(), kHash) != 0) {
    damage = "is not what was written";
    return nullptr;
  }
  SnapshotRecord record;
  damage = decodeWhole<record::SnapshotRecord>(
      bytes, "has bytes after its end", "is not a well-formed message",
      [&](record::SnapshotRecord::Reader from) { return decodeFields(from, record); });
  if (!damage.empty()) return nullptr;
  return record;
}

}  // namespace cordon::broker
