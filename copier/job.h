// What the broker and cordon-copier agree on: descriptor numbers, the job (a
// sealed memfd) and the one record that comes back.
#pragma once
#include <cstddef>
#include <cstdint>

namespace cordon::copier {

constexpr uint32_t kFormat = 1;  // of the archive

// Descriptors. 0 is the socket for the report; all others come through
// cordon-jailer (kFirstExtraFd of jailer/report.h). Those of the root are absent
// where it is read-only, the lower and upper one when restoring.
constexpr int kReportFd = 0;
constexpr int kJobFd = 16;
constexpr int kArchiveFd = 17;
constexpr int kWorkFd = 18;
constexpr int kTmpFd = 19;
constexpr int kMergedFd = 20;  // the root as the sandbox sees it, mounts and all
constexpr int kLowerFd = 21;   // the same without what was written
constexpr int kUpperFd = 22;   // what was written: u0, u1, … for each of `roots`
constexpr int kEndFd = 23;

// None is exceeded, in either direction: a snapshot that could not be restored
// is not made.
struct Bounds {
  uint64_t archiveBytes;  // the whole file
  uint64_t dataBytes;     // content of files
  uint64_t logicalBytes;  // lengths of files, holes counted
  uint32_t entries;
  uint32_t depth;           // directories in one another
  uint64_t linkTableBytes;  // memory for names of files with several names
};

enum class Bound : uint32_t { kNone, kBytes, kLogicalBytes, kEntries, kDepth, kLinks };

enum class Task : uint32_t { kSave = 1, kRestore = 2 };

constexpr uint32_t kJobMagic = 0x6a6f6231;
constexpr size_t kMostRoots = 576;

// Followed by `roots` times {uint32 number of the upper layer, uint32 length,
// path in the root}.
struct Job {
  uint32_t magic = kJobMagic;
  Task task = Task::kSave;
  Bounds bounds = {};
  uint64_t archiveBytes = 0;  // kRestore: as recorded
  uint8_t sha256[32] = {};    // kRestore
  uint32_t roots = 0;         // kSave; 0 = the root is read-only
  uint32_t zero = 0;
};

enum class Outcome : uint32_t {
  kDone = 1,
  kTooLarge,  // `bound` says which
  kNoSpace,   // kSave: the disk; kRestore: the sandbox's own layers
  kDamaged,   // not what was written
  kChanged,   // kSave: something moved although it is frozen
  kFailed,    // `error`
};

struct Report {
  static constexpr uint32_t kMagic = 0x636f7079;
  uint32_t magic = kMagic;
  Outcome outcome = Outcome::kFailed;
  Bound bound = Bound::kNone;
  int32_t error = 0;
  uint64_t archiveBytes = 0;
  uint64_t dataBytes = 0;
  uint64_t logicalBytes = 0;
  uint32_t entries = 0;
  uint32_t skippedSockets = 0;
  uint32_t skippedDevices = 0;
  uint32_t withoutXattrs = 0;  // files and directories whose xattrs were left behind
  uint8_t sha256[32] = {};
};

}  // namespace cordon::copier
