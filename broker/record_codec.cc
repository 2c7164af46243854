// Records as bytes, and back with every field checked.
#include <capnp/message.h>
#include <capnp/serialize.h>
#include <kj/debug.h>
#include <string.h>

#include <algorithm>

#include "broker/cgroups_dir.h"
#include "broker/limits_codec.h"
#include "broker/record.capnp.h"
#include "broker/records.h"
#include "broker/whole_message.h"

namespace cordon::broker {

namespace {

constexpr size_t kMaxText = 1024;
constexpr size_t kMaxPath = 4096;

capnp::Text::Reader text(const std::string& s) {
  return {s.data(), s.size()};
}

record::State encodeState(rpc::SandboxState state) {
  switch (state) {
    case rpc::SandboxState::CREATING:
      return record::State::CREATING;
    case rpc::SandboxState::READY:
      return record::State::READY;
    case rpc::SandboxState::LOST:
      return record::State::LOST;
    case rpc::SandboxState::DESTROYING:
      return record::State::DESTROYING;
  }
  KJ_FAIL_REQUIRE("unknown state");
}

bool decodeState(record::State from, rpc::SandboxState& to) {
  switch (from) {
    case record::State::CREATING:
      to = rpc::SandboxState::CREATING;
      return true;
    case record::State::READY:
      to = rpc::SandboxState::READY;
      return true;
    case record::State::LOST:
      to = rpc::SandboxState::LOST;
      return true;
    case record::State::DESTROYING:
      to = rpc::SandboxState::DESTROYING;
      return true;
  }
  return false;
}

bool isHex64(const std::string& s) {
  return s.size() == 64 && s.find_first_not_of("0123456789abcdef") == std::string::npos;
}

// Absolute, no "..": what a destroy may remove.
bool isPlainPath(const std::string& s) {
  return s.size() > 1 && s[0] == '/' && (s + "/").find("/../") == std::string::npos;
}

// Takes a text with a bound; false for one that is longer or has a NUL inside.
bool take(capnp::Text::Reader from, std::string& to, size_t most = kMaxText) {
  if (from.size() > most || memchr(from.begin(), 0, from.size()) != nullptr) return false;
  to.assign(from.begin(), from.size());
  return true;
}

// "" = good.
std::string decodeTexts(record::SandboxRecord::Reader from, SandboxRecord& to) {
  if (!take(from.getBootId(), to.bootId)) return "bootId is not a text of this kind";
  if (!take(from.getName(), to.name) || !isRecordName(to.name)) return "the name is not one";
  if (!take(from.getRuntime(), to.runtime)) return "runtime is not a text of this kind";
  if (!take(from.getImage(), to.image)) return "image is not a text of this kind";
  if (!take(from.getTokenHash(), to.tokenHash) ||
      (!to.tokenHash.empty() && !isHex64(to.tokenHash))) {
    return "tokenHash is not a SHA-256";
  }
  if (!take(from.getDirectory(), to.directory, kMaxPath) ||
      (!to.directory.empty() && !isPlainPath(to.directory))) {
    return "directory is not an absolute path";
  }
  if (!take(from.getCgroup(), to.cgroup) || (!to.cgroup.empty() && !isCgroupPath(to.cgroup))) {
    return "cgroup is not a cgroup's path";
  }
  return "";
}

std::string decodeLeft(record::SandboxRecord::Reader from, SandboxRecord& to) {
  auto list = from.getLeft();
  if (list.size() > kMaxRecordLeftOvers) return "too many leftovers";
  for (auto item : list) {
    LeftOver left;
    if (!take(item.getKind(), left.kind) || !take(item.getName(), left.name, kMaxPath)) {
      return "a leftover is not a text of this kind";
    }
    left.error = item.getErrno();
    to.left.push_back(std::move(left));
  }
  return "";
}

std::string decode(record::SandboxRecord::Reader from, SandboxRecord& to) {
  if (from.getVersion() != record::CURRENT_VERSION) return "another version";
  if (auto damage = decodeTexts(from, to); !damage.empty()) return damage;
  if (auto damage = decodeLeft(from, to); !damage.empty()) return damage;
  if (!decodeState(from.getState(), to.state)) return "an unknown state";
  to.ownerUid = from.getOwnerUid();
  to.idSlot = from.getIdSlot();
  to.idFirst = from.getIdFirst();
  to.idCount = from.getIdCount();
  if ((to.idSlot == 0) != (to.idCount == 0)) return "half an id range";
  to.createdUnixMs = from.getCreatedUnixMs();
  to.createdBootMs = from.getCreatedBootMs();
  to.limits = decodeLimits(from.getLimits());
  to.ttlMs = from.getTtlMs();
  to.idleMs = from.getIdleMs();
  return "";
}

}  // namespace

void encodeLimits(record::Limits::Builder to, const ResolvedLimits& from) {
  to.setMemoryBytes(from.memoryBytes);
  to.setPids(from.pids);
  to.setCpuMillis(from.cpuMillis);
  to.setCpuTimeMs(from.cpuTimeMs);
  to.setWallMs(from.wallMs);
  to.setFileSizeBytes(from.fileSizeBytes);
  to.setFiles(from.files);
  to.setDiskBytes(from.diskBytes);
  to.setTmpBytes(from.tmpBytes);
  to.setRootBytes(from.rootBytes);
  to.setShmBytes(from.shmBytes);
  to.setOutputBytes(from.outputBytes);
}

ResolvedLimits decodeLimits(record::Limits::Reader from) {
  ResolvedLimits to;
  to.memoryBytes = from.getMemoryBytes();
  to.pids = from.getPids();
  to.cpuMillis = from.getCpuMillis();
  to.cpuTimeMs = from.getCpuTimeMs();
  to.wallMs = from.getWallMs();
  to.fileSizeBytes = from.getFileSizeBytes();
  to.files = from.getFiles();
  to.diskBytes = from.getDiskBytes();
  to.tmpBytes = from.getTmpBytes();
  to.rootBytes = from.getRootBytes();
  to.shmBytes = from.getShmBytes();
  to.outputBytes = from.getOutputBytes();
  return to;
}

bool isRecordName(const std::string& name) {
  if (name.empty() || name.size() > 64 || name[0] == '-') return false;
  return name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-") == std::string::npos;
}

kj::Array<kj::byte> encodeRecord(const SandboxRecord& from) {
  capnp::MallocMessageBuilder message;
  auto to = message.initRoot<record::SandboxRecord>();
  to.setVersion(record::CURRENT_VERSION);
  to.setBootId(text(from.bootId));
  to.setName(text(from.name));
  to.setOwnerUid(from.ownerUid);
  to.setRuntime(text(from.runtime));
  to.setImage(text(from.image));
  to.setTokenHash(text(from.tokenHash));
  to.setDirectory(text(from.directory));
  to.setCgroup(text(from.cgroup));
  to.setIdSlot(from.idSlot);
  to.setIdFirst(from.idFirst);
  to.setIdCount(from.idCount);
  to.setCreatedUnixMs(from.createdUnixMs);
  to.setCreatedBootMs(from.createdBootMs);
  encodeLimits(to.initLimits(), from.limits);
  to.setTtlMs(from.ttlMs);
  to.setIdleMs(from.idleMs);
  to.setState(encodeState(from.state));
  auto count = static_cast<uint32_t>(std::min(from.left.size(), kMaxRecordLeftOvers));
  auto left = to.initLeft(count);
  for (uint32_t i = 0; i < count; ++i) {
    // Shortened, so that the whole stays a record that can be read back.
    left[i].setKind(text(from.left[i].kind.substr(0, 32)));
    left[i].setName(text(from.left[i].name.substr(0, 160)));
    left[i].setErrno(from.left[i].error);
  }
  auto words = capnp::messageToFlatArray(message);
  auto bytes = kj::heapArray<kj::byte>(words.asBytes());
  KJ_REQUIRE(bytes.size() <= kMaxRecordBytes, "the record is too large", from.name);
  return bytes;
}

kj::Maybe<SandboxRecord> decodeRecord(kj::ArrayPtr<const kj::byte> bytes, std::string& damage) {
  damage.clear();
  if (bytes.size() > kMaxRecordBytes || bytes.size() < 16 || bytes.size() % 8 != 0) {
    damage = "not a record's size";
    return nullptr;
  }
  SandboxRecord record;
  damage = decodeWhole<record::SandboxRecord>(
      bytes, "bytes after the end", "not a well-formed message",
      [&](record::SandboxRecord::Reader from) { return decode(from, record); });
  if (!damage.empty()) return nullptr;
  return record;
}

}  // namespace cordon::broker
