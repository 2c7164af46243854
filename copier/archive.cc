#include "copier/archive.h"

#include <sha256.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace cordon::copier {

namespace {

constexpr size_t kLongestTarget = 4095;
constexpr uint32_t kEveryMode = 07777;
constexpr uint64_t kLongestFile = uint64_t{1} << 62;

struct Header {
  char magic[8];
  uint32_t format;
  uint32_t zero;
};

struct Head {
  uint8_t kind;
  uint8_t zero;
  uint16_t nameLength;
  uint32_t textLength;
  uint32_t mode, uid, gid, nanoseconds;
  int64_t seconds;
  uint64_t size;
};
static_assert(sizeof(Head) == 40 && sizeof(Header) == 16);

struct Extent {
  uint64_t offset, length;
};

[[noreturn]] void tooLarge(Bound bound) {
  throw Stop{Outcome::kTooLarge, 0, bound};
}

[[noreturn]] void notAnArchive() {
  throw Stop{Outcome::kDamaged};
}

// Sums that both directions keep.
struct Sums {
  const Bounds& bounds;
  uint64_t data = 0, logical = 0;
  uint32_t entries = 0;

  void entry() {
    if (++entries > bounds.entries) tooLarge(Bound::kEntries);
  }
  void file(uint64_t size) {
    if (size > bounds.logicalBytes - logical) tooLarge(Bound::kLogicalBytes);
    logical += size;
  }
  void content(uint64_t size) {
    if (size > bounds.dataBytes - data) tooLarge(Bound::kBytes);
    data += size;
  }
};

}  // namespace

bool isName(std::string_view name) {
  return !name.empty() && name.size() <= 255 && name != "." && name != ".." &&
         name.find('/') == std::string_view::npos && name.find('\0') == std::string_view::npos;
}

bool isPlainPath(std::string_view path) {
  while (true) {
    size_t slash = path.find('/');
    if (!isName(path.substr(0, slash))) return false;
    if (slash == std::string_view::npos) return true;
    path.remove_prefix(slash + 1);
  }
}

// ------------------------------------------------------------------ writing

Writer::Writer(int fd, const Bounds& bounds) : fd_(fd), bounds_(bounds) {
  buffer_.reserve(kChunk);
  Header header = {};
  memcpy(header.magic, kArchiveMagic, sizeof(header.magic));
  header.format = kFormat;
  append(&header, sizeof(header));
}

void Writer::append(const void* data, size_t size) {
  if (size > bounds_.archiveBytes - total_) tooLarge(Bound::kBytes);
  total_ += size;
  auto from = static_cast<const char*>(data);
  while (size > 0) {
    size_t part = std::min(size, kChunk - buffer_.size());
    buffer_.insert(buffer_.end(), from, from + part);
    from += part;
    size -= part;
    if (buffer_.size() == kChunk) flush();
  }
}

void Writer::flush() {
  size_t done = 0;
  while (done < buffer_.size()) {
    ssize_t n = write(fd_, buffer_.data() + done, buffer_.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      bool full = errno == ENOSPC || errno == EDQUOT || errno == EFBIG;
      throw Stop{full ? Outcome::kNoSpace : Outcome::kFailed, errno};
    }
    done += static_cast<size_t>(n);
  }
  buffer_.clear();
}

void Writer::put(const Entry& entry) {
  Sums sums{bounds_, data_, logical_, entries_};
  sums.entry();
  if (entry.kind == Kind::kFile) sums.file(entry.size);
  entries_ = sums.entries;
  logical_ = sums.logical;
  Head head = {};
  head.kind = static_cast<uint8_t>(entry.kind);
  head.nameLength = static_cast<uint16_t>(entry.name.size());
  head.textLength = static_cast<uint32_t>(entry.text.size());
  head.mode = entry.attributes.mode;
  head.uid = entry.attributes.uid;
  head.gid = entry.attributes.gid;
  head.seconds = entry.attributes.seconds;
  head.nanoseconds = entry.attributes.nanoseconds;
  head.size = entry.size;
  append(&head, sizeof(head));
  append(entry.name.data(), entry.name.size());
  append(entry.text.data(), entry.text.size());
}

void Writer::extent(uint64_t offset, uint64_t length) {
  Sums sums{bounds_, data_, logical_, entries_};
  sums.content(length);
  data_ = sums.data;
  Extent extent{offset, length};
  append(&extent, sizeof(extent));
}

void Writer::bytes(const void* data, size_t size) {
  append(data, size);
}

void Writer::endFile(uint64_t size) {
  Extent last{size, 0};
  append(&last, sizeof(last));
}

void Writer::finish(Report& report) {
  put(Entry{});
  flush();
  if (fsync(fd_) < 0) throw Stop{Outcome::kFailed, errno};
  report.archiveBytes = total_;
  report.dataBytes = data_;
  report.logicalBytes = logical_;
  report.entries = entries_;
  // Of what is in the file now, not of what was meant to be.
  SHA2_CTX hash;
  SHA256Init(&hash);
  buffer_.resize(kChunk);
  for (uint64_t offset = 0; offset < total_;) {
    ssize_t n = pread(fd_, buffer_.data(), kChunk, static_cast<off_t>(offset));
    if (n <= 0) throw Stop{Outcome::kFailed, n < 0 ? errno : EIO};
    SHA256Update(&hash, reinterpret_cast<uint8_t*>(buffer_.data()), static_cast<size_t>(n));
    offset += static_cast<uint64_t>(n);
  }
  SHA256Final(report.sha256, &hash);
  buffer_.clear();
}

// ------------------------------------------------------------------ reading

namespace {

class Decoder {
 public:
  Decoder(Source& source, const Bounds& bounds, Sink& sink)
      : source_(source), bounds_(bounds), sink_(sink), sums_{bounds} {}

  void run() {
    Header header;
    take(&header, sizeof(header));
    if (memcmp(header.magic, kArchiveMagic, sizeof(header.magic)) != 0) notAnArchive();
    if (header.format != kFormat || header.zero != 0) notAnArchive();
    while (next()) {
    }
    char more;
    if (source_.read(&more, 1) != 0) notAnArchive();
  }

 private:
  void take(void* into, size_t size) {
    auto to = static_cast<char*>(into);
    while (size > 0) {
      size_t n = source_.read(to, size);
      if (n == 0) notAnArchive();
      to += n;
      size -= n;
    }
  }

  std::string takeText(size_t size, size_t most) {
    if (size > most) notAnArchive();
    std::string text(size, '\0');
    take(text.data(), size);
    return text;
  }

  // False: that was the end.
  bool next() {
    Head head;
    take(&head, sizeof(head));
    sums_.entry();
    if (head.zero != 0 || head.mode > kEveryMode || head.nanoseconds >= 1'000'000'000)
      notAnArchive();
    Entry entry;
    entry.kind = static_cast<Kind>(head.kind);
    entry.attributes = {head.mode, head.uid, head.gid, head.seconds, head.nanoseconds};
    entry.size = head.size;
    entry.name = takeText(head.nameLength, 255);
    size_t longest = entry.kind == Kind::kSymlink ? kLongestTarget
                     : entry.kind == Kind::kLink || entry.kind == Kind::kLayer
                         ? size_t{bounds_.depth + 1} * 256
                         : 0;
    entry.text = takeText(head.textLength, longest);
    return tell(entry);
  }

  bool tell(const Entry& entry) {
    switch (entry.kind) {
      case Kind::kLayer:
        if (depth_ != 0 || !entry.name.empty()) notAnArchive();
        if (entry.size > static_cast<uint64_t>(Layer::kTmp)) notAnArchive();
        if (!entry.text.empty() && !isPlainPath(entry.text)) notAnArchive();
        enter();
        sink_.layer(static_cast<Layer>(entry.size), entry);
        return true;
      case Kind::kLeave:
        if (depth_ == 0 || !entry.name.empty()) notAnArchive();
        --depth_;
        sink_.leave();
        return true;
      case Kind::kEnd:
        if (depth_ != 0 || !entry.name.empty()) notAnArchive();
        return false;
      case Kind::kDirectory:
        requireNamed(entry);
        enter();
        sink_.directory(entry);
        return true;
      case Kind::kFile:
        requireNamed(entry);
        file(entry);
        return true;
      case Kind::kSymlink:
        requireNamed(entry);
        if (entry.text.empty() || entry.text.find('\0') != std::string::npos) notAnArchive();
        sink_.symlink(entry);
        return true;
      case Kind::kLink:
        requireNamed(entry);
        if (!isPlainPath(entry.text)) notAnArchive();
        sink_.link(entry);
        return true;
      case Kind::kFifo:
        requireNamed(entry);
        sink_.fifo(entry);
        return true;
      case Kind::kGone:
        requireNamed(entry);
        sink_.gone(entry);
        return true;
    }
    notAnArchive();
  }

  void requireNamed(const Entry& entry) const {
    if (depth_ == 0 || !isName(entry.name)) notAnArchive();
  }

  void enter() {
    if (++depth_ > bounds_.depth) tooLarge(Bound::kDepth);
  }

  void file(const Entry& entry) {
    if (entry.size > kLongestFile) notAnArchive();
    sums_.file(entry.size);
    sink_.file(entry);
    buffer_.resize(kChunk);
    uint64_t end = 0;
    while (true) {
      Extent extent;
      take(&extent, sizeof(extent));
      if (extent.length == 0) {
        if (extent.offset != entry.size) notAnArchive();
        break;
      }
      if (extent.offset < end || extent.offset > entry.size ||
          extent.length > entry.size - extent.offset) {
        notAnArchive();
      }
      sums_.content(extent.length);
      end = extent.offset + extent.length;
      for (uint64_t at = extent.offset; at < end;) {
        size_t part = static_cast<size_t>(std::min<uint64_t>(kChunk, end - at));
        take(buffer_.data(), part);
        sink_.data(at, buffer_.data(), part);
        at += part;
      }
    }
    sink_.endFile();
  }

  Source& source_;
  const Bounds& bounds_;
  Sink& sink_;
  Sums sums_;
  uint32_t depth_ = 0;
  std::vector<char> buffer_;
};

}  // namespace

void decode(Source& source, const Bounds& bounds, Sink& sink) {
  Decoder(source, bounds, sink).run();
}

}  // namespace cordon::copier
