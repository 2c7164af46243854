#include "copier/restore.h"

#include <fcntl.h>
#include <sha256.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "copier/files.h"

namespace cordon::copier {

namespace {

class FileSource final : public Source {
 public:
  explicit FileSource(int fd) : fd_(fd), buffer_(kChunk) {}
  size_t read(void* into, size_t size) override {
    if (next_ == end_) {
      ssize_t n = pread(fd_, buffer_.data(), buffer_.size(), offset_);
      if (n < 0) failed(errno);
      offset_ += n;
      next_ = 0;
      end_ = static_cast<size_t>(n);
    }
    size = std::min(size, end_ - next_);
    memcpy(into, buffer_.data() + next_, size);
    next_ += size;
    return size;
  }

 private:
  int fd_;
  off_t offset_ = 0;
  std::vector<char> buffer_;
  size_t next_ = 0, end_ = 0;
};

[[noreturn]] void damaged(int error) {
  throw Stop{Outcome::kDamaged, error};
}

class Unpacker final : public Sink {
 public:
  Unpacker(const Layers& layers, const Bounds& bounds, Report& report)
      : layers_(layers), bounds_(bounds), report_(report) {}

  void layer(Layer kind, const Entry& entry) override {
    ++report_.entries;
    int base = kind == Layer::kWork  ? layers_.work
               : kind == Layer::kTmp ? layers_.tmp
                                     : layers_.merged;
    if (base < 0) damaged(ENOENT);  // the root's, where it is read-only
    if (kind != Layer::kRoot && !entry.text.empty()) damaged(EINVAL);
    const char* path = entry.text.empty() ? "." : entry.text.c_str();
    File top(openBeneath(base, path, O_RDONLY | O_DIRECTORY, Mounts::kAny));
    if (!top.open()) failed(errno);
    stack_.push_back({std::move(top), entry.attributes});
  }

  void directory(const Entry& entry) override {
    ++report_.entries;
    const char* name = entry.name.c_str();
    struct stat status;
    bool there = fstatat(here(), name, &status, AT_SYMLINK_NOFOLLOW) == 0;
    if (!there && errno != ENOENT) failed(errno);
    if (there && !S_ISDIR(status.st_mode)) {
      remove(here(), name, 0);
      there = false;
    }
    if (!there) must(mkdirat(here(), name, 0700));
    File child(openBeneath(here(), name, O_RDONLY | O_DIRECTORY));
    if (!child.open()) failed(errno);
    stack_.push_back({std::move(child), entry.attributes});
  }

  // Last, since what was done in it changed its time.
  void leave() override {
    auto& top = stack_.back();
    // The image's own directory may be the host's: then it is as it was there.
    bool ofLayer = stack_.size() == 1;
    apply(top.file.get(), top.attributes, ofLayer);
    stack_.pop_back();
  }

  void file(const Entry& entry) override {
    makeRoom(entry);
    file_ = File(createFile(here(), entry.name.c_str()));
    if (!file_.open()) failed(errno);
    attributes_ = entry.attributes;
    report_.logicalBytes += entry.size;
    must(ftruncate(file_.get(), static_cast<off_t>(entry.size)));
  }

  void data(uint64_t offset, const char* bytes, size_t size) override {
    report_.dataBytes += size;
    while (size > 0) {
      ssize_t n = pwrite(file_.get(), bytes, size, static_cast<off_t>(offset));
      if (n < 0) failed(errno);
      bytes += n;
      offset += static_cast<uint64_t>(n);
      size -= static_cast<size_t>(n);
    }
  }

  void endFile() override {
    apply(file_.get(), attributes_);
    file_.close();
  }

  void symlink(const Entry& entry) override {
    makeRoom(entry);
    must(symlinkat(entry.text.c_str(), here(), entry.name.c_str()));
    own(entry);
    setTime(entry);
  }

  void fifo(const Entry& entry) override {
    makeRoom(entry);
    must(mknodat(here(), entry.name.c_str(), S_IFIFO | 0600, 0));
    own(entry);
    must(fchmodat(here(), entry.name.c_str(), entry.attributes.mode, 0));
    setTime(entry);
  }

  void link(const Entry& entry) override {
    makeRoom(entry);
    size_t slash = entry.text.rfind('/');
    std::string directory = slash == std::string::npos ? "." : entry.text.substr(0, slash);
    std::string last = slash == std::string::npos ? entry.text : entry.text.substr(slash + 1);
    File from(openBeneath(stack_.front().file.get(), directory.c_str(), O_RDONLY | O_DIRECTORY));
    if (!from.open()) damaged(errno);
    struct stat status;
    bool good = fstatat(from.get(), last.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0;
    if (!good || !S_ISREG(status.st_mode)) damaged(EINVAL);
    must(linkat(from.get(), last.c_str(), here(), entry.name.c_str(), 0));
  }

  void gone(const Entry& entry) override { makeRoom(entry); }

 private:
  struct Open {
    File file;
    Attributes attributes;
  };

  int here() const { return stack_.back().file.get(); }

  static void must(int result) {
    if (result < 0) failed(errno);
  }

  void makeRoom(const Entry& entry) {
    ++report_.entries;
    struct stat status;
    if (fstatat(here(), entry.name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0) {
      return remove(here(), entry.name, 0);
    }
    if (errno != ENOENT) failed(errno);
  }

  void remove(int directory, const std::string& name, uint32_t depth) {
    if (unlinkat(directory, name.c_str(), 0) == 0) return;
    if (errno != EISDIR) failed(errno);
    if (depth > bounds_.depth) throw Stop{Outcome::kTooLarge, 0, Bound::kDepth};
    File child(openBeneath(directory, name.c_str(), O_RDONLY | O_DIRECTORY));
    if (!child.open()) failed(errno);
    // Again from the start until nothing is left: removing while reading is
    // allowed to skip names.
    for (bool any = true; any;) {
      any = false;
      Listing names(child.get());
      while (const char* each = names.next()) {
        remove(child.get(), each, depth + 1);
        any = true;
      }
    }
    must(unlinkat(directory, name.c_str(), AT_REMOVEDIR));
  }

  void own(const Entry& entry) {
    must(fchownat(here(), entry.name.c_str(), entry.attributes.uid, entry.attributes.gid,
                  AT_SYMLINK_NOFOLLOW));
  }

  static void times(const Attributes& attributes, timespec (&both)[2]) {
    both[0] = both[1] = {attributes.seconds, attributes.nanoseconds};
  }

  void setTime(const Entry& entry) {
    timespec both[2];
    times(entry.attributes, both);
    must(utimensat(here(), entry.name.c_str(), both, AT_SYMLINK_NOFOLLOW));
  }

  // Owner first: a change of it clears set-id bits. What is as it should be is left
  // alone: it may belong to an id that is none here.
  static void apply(int fd, const Attributes& attributes, bool mayBeForeign = false) {
    struct stat status;
    must(fstat(fd, &status));
    if (status.st_uid != attributes.uid || status.st_gid != attributes.gid) {
      must(fchown(fd, attributes.uid, attributes.gid));
      must(fstat(fd, &status));
    }
    if ((status.st_mode & 07777u) != attributes.mode) must(fchmod(fd, attributes.mode));
    timespec both[2];
    times(attributes, both);
    if (futimens(fd, both) < 0 && !(mayBeForeign && errno == EPERM)) failed(errno);
  }

  const Layers& layers_;
  const Bounds& bounds_;
  Report& report_;
  std::vector<Open> stack_;
  File file_;
  Attributes attributes_;
};

}  // namespace

void verify(int archive, uint64_t bytes, const uint8_t (&sha256)[32]) {
  SHA2_CTX hash;
  SHA256Init(&hash);
  FileSource source(archive);
  std::vector<char> buffer(kChunk);
  uint64_t total = 0;
  while (size_t n = source.read(buffer.data(), buffer.size())) {
    total += n;
    if (total > bytes) damaged(EFBIG);
    SHA256Update(&hash, reinterpret_cast<uint8_t*>(buffer.data()), n);
  }
  uint8_t digest[32];
  SHA256Final(digest, &hash);
  if (total != bytes || memcmp(digest, sha256, sizeof(digest)) != 0) damaged(0);
}

void restore(int archive, const Layers& layers, const Bounds& bounds, Report& report) {
  FileSource source(archive);
  Unpacker unpacker(layers, bounds, report);
  decode(source, bounds, unpacker);
}

}  // namespace cordon::copier
