// The durable records of this broker's sandboxes (record.capnp), one file each
// in a directory of root's alone.
//
// A record is written to a temporary name and renamed, so that a reader sees a
// whole one or none. What is read back is checked like any other input: owner,
// mode, size, structure, names. A record that fails is reported as damaged with
// its name, because what it stood for must still be cleaned up by name.
#pragma once
#include <kj/array.h>
#include <kj/common.h>
#include <kj/io.h>

#include <cstdint>
#include <string>
#include <vector>

#include "broker/cgroups.h"
#include "broker/limits.h"
#include "ipc/broker.capnp.h"

namespace cordon::broker {

constexpr size_t kMaxRecordBytes = 64 * 1024;
constexpr size_t kMaxRecordLeftOvers = 128;

struct SandboxRecord {
  std::string bootId;  // "" when written: this boot's
  std::string name;
  uint32_t ownerUid = 0;
  std::string runtime;
  std::string image;
  std::string tokenHash;
  std::string directory;
  std::string cgroup;   // SandboxCgroups::path(), "" = none
  uint32_t idSlot = 0;  // 0 = none
  uint32_t idFirst = 0;
  uint32_t idCount = 0;
  int64_t createdUnixMs = 0;
  uint64_t createdBootMs = 0;  // CLOCK_BOOTTIME
  ResolvedLimits limits;
  uint64_t ttlMs = 0;
  uint64_t idleMs = 0;
  rpc::SandboxState state = rpc::SandboxState::CREATING;
  std::vector<LeftOver> left;  // only the first kMaxRecordLeftOvers are kept
};

// The bytes of a record, and back. Decoding never throws: null, with one
// sentence in `damage`, for anything that encode would not have written.
kj::Array<kj::byte> encodeRecord(const SandboxRecord& record);
kj::Maybe<SandboxRecord> decodeRecord(kj::ArrayPtr<const kj::byte> bytes, std::string& damage);

// A file name that can be a record: 1 to 64 of a-z, 0-9 and '-', no leading '-'.
bool isRecordName(const std::string& name);

// /proc/sys/kernel/random/boot_id.
std::string currentBootId();

class Records {
 public:
  struct Found {
    std::string name;
    kj::Maybe<SandboxRecord> record;  // null: damaged
    std::string damage;
  };

  // Makes `path` (0700) where it is missing, and removes temporary files of a
  // writer that died. Throws (kj) when it is a link, another's, or writable by
  // others.
  explicit Records(const std::string& path);

  // Absolute name of a record's file, existing or not.
  std::string pathOf(const std::string& name) const;
  // Writes or replaces; errno when the disk is full, 0 = written. Any other
  // failure throws (kj, with errno). Nothing changes then.
  [[nodiscard]] int write(const SandboxRecord& record);
  // Null when there is none.
  kj::Maybe<Found> load(const std::string& name) const;
  // Every entry with a record's name, in order. Others are named in `strange`
  // (never touched).
  std::vector<Found> list(std::vector<std::string>* strange = nullptr) const;
  // Removes the file, or whatever has that name and is no directory; errno,
  // 0 = gone.
  int remove(const std::string& name);

 private:
  Found read(const std::string& name) const;

  std::string path_;
  kj::AutoCloseFd dir_;
};

}  // namespace cordon::broker
