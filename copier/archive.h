// The file a snapshot's content is kept in: what of a sandbox's root was changed
// or removed, and all of /work and /tmp, as a stream of entries.
//
//   "CORDSNAP" version bounds-free header, then entries, then the end entry
//   layer      `text` = where it lies in the root (or "", for /work and /tmp),
//              `size` = which of the three kinds; attributes of its own directory
//   directory … leave       nested as the tree is
//   file       `size` = its length, then extents {offset, length, bytes}, closed
//              by one of length 0: what lies between them is a hole
//   symlink    `text` = target
//   link       `text` = path within the layer of the file that it is a name of
//   fifo, gone (of the lower layer's name: it was removed)
//
// Written and read by unprivileged processes alone. Numbers are little-endian,
// ids are those inside the sandbox. Whoever decodes believes nothing: names are
// single components, paths plain, sizes and counts within Bounds.
#pragma once
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "copier/job.h"

namespace cordon::copier {

constexpr char kArchiveMagic[8] = {'C', 'O', 'R', 'D', 'S', 'N', 'A', 'P'};

constexpr size_t kChunk = 256 << 10;  // of a file at a time

// Ends the work: what the broker is told.
struct Stop {
  Outcome outcome;
  int error = 0;
  Bound bound = Bound::kNone;
};

enum class Kind : uint8_t {
  kLayer = 1,
  kDirectory,
  kLeave,
  kFile,
  kSymlink,
  kLink,
  kFifo,
  kGone,
  kEnd,
};

enum class Layer : uint8_t { kRoot, kWork, kTmp };

struct Attributes {
  uint32_t mode = 0;  // at most 07777
  uint32_t uid = 0, gid = 0;
  int64_t seconds = 0;  // of the last change
  uint32_t nanoseconds = 0;
};

struct Entry {
  Kind kind = Kind::kEnd;
  Attributes attributes;
  uint64_t size = 0;
  std::string name;  // one component
  std::string text;
};

// One component of a path: 1 to 255 bytes without '/' and NUL, not "." or "..".
bool isName(std::string_view name);
// Components with one '/' between them.
bool isPlainPath(std::string_view path);

class Writer {
 public:
  // Appends to `fd`. Throws Stop, as everything here does.
  Writer(int fd, const Bounds& bounds);
  // Also of kFile: its content follows by extent() and bytes(), then endFile().
  void put(const Entry& entry);
  void extent(uint64_t offset, uint64_t length);
  void bytes(const void* data, size_t size);
  void endFile(uint64_t size);
  // The end entry, the rest of the buffer, and the file on the disk.
  void finish(Report& report);

 private:
  void append(const void* data, size_t size);
  void flush();

  int fd_;
  Bounds bounds_;
  std::vector<char> buffer_;
  uint64_t total_ = 0;
  uint64_t data_ = 0;
  uint64_t logical_ = 0;
  uint32_t entries_ = 0;
};

class Source {
 public:
  virtual ~Source() = default;
  // 0 at the end; throws Stop.
  virtual size_t read(void* into, size_t size) = 0;
};

// What a decoder tells, in order and well nested.
class Sink {
 public:
  virtual ~Sink() = default;
  virtual void layer(Layer kind, const Entry& entry) = 0;
  virtual void directory(const Entry& entry) = 0;
  virtual void leave() = 0;
  virtual void file(const Entry& entry) = 0;
  virtual void data(uint64_t offset, const char* bytes, size_t size) = 0;
  virtual void endFile() = 0;
  virtual void symlink(const Entry& entry) = 0;
  virtual void link(const Entry& entry) = 0;
  virtual void fifo(const Entry& entry) = 0;
  virtual void gone(const Entry& entry) = 0;
};

// Throws Stop(kDamaged) for what a Writer would not have written, and
// Stop(kTooLarge) for what is past `bounds`.
void decode(Source& source, const Bounds& bounds, Sink& sink);

}  // namespace cordon::copier
