// The snapshots of this instance on disk: DIR/NAME/{meta,data}, DIR root's alone.
//
// One is made as DIR/.new-NAME, brought to the disk wholly and renamed, so that
// under its name there is a whole one or none. It never changes then. What is read
// back is checked like any other input; the archive's content is checked by whoever
// restores it, an unprivileged process: root never looks into it.
#pragma once
#include <kj/array.h>
#include <kj/common.h>
#include <kj/io.h>
#include <kj/one-of.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "broker/limits.h"

namespace cordon::broker {

constexpr size_t kMaxSnapshotRecordBytes = 16 * 1024;

struct SnapshotRecord {
  std::string machine;
  uint32_t format = 0;
  std::string name;
  uint32_t ownerUid = 0;
  std::string tokenHash;
  std::string sandbox;
  std::string runtime;
  std::string image;
  std::string imageIdentity;
  std::string seccomp;
  int64_t createdUnixMs = 0;
  ResolvedLimits limits;
  uint64_t archiveBytes = 0;
  std::string sha256;
  uint64_t dataBytes = 0;
  uint64_t logicalBytes = 0;
  uint32_t entries = 0;
  uint32_t skippedSockets = 0;
  uint32_t skippedDevices = 0;
  uint32_t withoutXattrs = 0;
};

// Decoding never throws: null, with one sentence in `damage`, for anything that
// encode would not have written.
kj::Array<kj::byte> encodeSnapshot(const SnapshotRecord& record);
// The file ends with a SHA-256 of what is before it: sets that anew.
void sealSnapshot(kj::ArrayPtr<kj::byte> bytes);
kj::Maybe<SnapshotRecord> decodeSnapshot(kj::ArrayPtr<const kj::byte> bytes, std::string& damage);

// "sn-" and ten lower-case base32 characters.
bool isSnapshotName(const std::string& name);
// uname -m.
std::string thisMachine();

struct SnapshotCaps {
  uint32_t count = 64;
  uint32_t countPerOwner = 16;
  uint64_t bytes = uint64_t{8} << 30;
  uint64_t bytesPerOwner = uint64_t{2} << 30;
};

class SnapshotStore {
 public:
  // One being made; removed with this unless it was published.
  class Draft {
   public:
    Draft(int store, std::string name) : store_(store), name_(std::move(name)) {}
    ~Draft() noexcept(false);
    KJ_DISALLOW_COPY(Draft);
    // Makes its directory and file. errno.
    int open() noexcept;
    // Read and write, empty.
    int archive() const { return archive_.get(); }
    const std::string& name() const { return name_; }
    // Its meta file and both directories reach the disk, and it gets its name.
    // errno. Blocks: call it off the loop. The content is on the disk already.
    int commit(kj::ArrayPtr<const kj::byte> meta) noexcept;

   private:
    kj::AutoCloseFd store_;
    std::string name_;
    bool made_ = false;
    kj::AutoCloseFd directory_;
    kj::AutoCloseFd archive_;
  };

  // Makes `path` (0700) where it is missing, removes what a broker that died left
  // half made, and reads the rest: `damaged` names what can't be read, which stays.
  // Throws (kj).
  SnapshotStore(const std::string& path, const SnapshotCaps& caps,
                std::vector<std::string>* damaged = nullptr);
  KJ_DISALLOW_COPY(SnapshotStore);

  const SnapshotCaps& caps() const { return caps_; }
  // Those of everybody, or of `owner`, with what is being made.
  uint32_t countOf(kj::Maybe<uint32_t> owner) const;
  // What the owner's next one may take at most.
  uint64_t roomFor(uint32_t owner) const;

  // One being made counts as there until this is dropped, and its bytes when they
  // are known. Not to outlive the store.
  class Place {
   public:
    Place(SnapshotStore& store, uint32_t owner) : store_(store), owner_(owner) {
      store_.places_.insert(this);
    }
    ~Place() noexcept(false) { store_.places_.erase(this); }
    KJ_DISALLOW_COPY(Place);
    uint64_t bytes = 0;

   private:
    friend class SnapshotStore;
    SnapshotStore& store_;
    uint32_t owner_;
  };

  // A file for one; errno.
  kj::OneOf<kj::Own<Draft>, int> begin(const std::string& name);
  // After its commit().
  void add(SnapshotRecord record);

  // Unknown name, another's owner and a wrong token are the same answer.
  kj::Maybe<const SnapshotRecord&> find(uint32_t owner, const std::string& name,
                                        const std::string& tokenHash) const;
  std::vector<const SnapshotRecord*> of(uint32_t owner) const;
  bool contains(const std::string& name) const { return records_.count(name) > 0; }

  // The archive, for reading, when meta and data are still what was written as far
  // as can be told without looking into the content; else one sentence.
  kj::OneOf<kj::AutoCloseFd, std::string> open(const SnapshotRecord& record) const;

  // It is nobody's from here on; what it leaves under another name is removed by
  // `purge`, off the loop.
  void forget(const std::string& name);
  // Removes what forget() and a broker that died left. Thread-safe.
  static void purge(int store) noexcept;
  int directory() const { return dir_.get(); }

 private:
  kj::Maybe<SnapshotRecord> read(const std::string& name, std::string& damage) const;

  std::string path_;
  SnapshotCaps caps_;
  kj::AutoCloseFd dir_;
  std::map<std::string, SnapshotRecord> records_;
  std::set<const Place*> places_;
};

}  // namespace cordon::broker
