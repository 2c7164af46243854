// Any bytes into the decoder of an archive: what it tells is well nested, named
// and within bounds.
#include <cstring>

#include "copier/archive.h"
#include "tests/fuzz/fuzz.h"

using namespace cordon::copier;

namespace {

constexpr Bounds kBounds = {1 << 20, 1 << 16, 1 << 20, 256, 8, 1 << 16};

class Memory final : public Source {
 public:
  Memory(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  size_t read(void* into, size_t size) override {
    size = std::min(size, size_);
    memcpy(into, data_, size);
    data_ += size;
    size_ -= size;
    return size;
  }

 private:
  const uint8_t* data_;
  size_t size_;
};

void require(bool good) {
  if (!good) __builtin_trap();
}

class Checker final : public Sink {
 public:
  void layer(Layer, const Entry& entry) override {
    require(depth_++ == 0);
    require(entry.text.empty() || isPlainPath(entry.text));
  }
  void directory(const Entry& entry) override {
    named(entry);
    require(++depth_ <= kBounds.depth);
  }
  void leave() override { require(depth_-- > 0); }
  void file(const Entry& entry) override {
    named(entry);
    size_ = entry.size;
    end_ = 0;
    require((logical_ += size_) <= kBounds.logicalBytes);
  }
  void data(uint64_t offset, const char*, size_t size) override {
    require(offset >= end_ && size > 0 && offset + size <= size_);
    end_ = offset + size;
    require((total_ += size) <= kBounds.dataBytes);
  }
  void endFile() override {}
  void symlink(const Entry& entry) override {
    named(entry);
    require(!entry.text.empty() && entry.text.size() < 4096);
  }
  void link(const Entry& entry) override {
    named(entry);
    require(isPlainPath(entry.text));
  }
  void fifo(const Entry& entry) override { named(entry); }
  void gone(const Entry& entry) override { named(entry); }

 private:
  void named(const Entry& entry) const {
    require(depth_ > 0 && isName(entry.name) && entry.attributes.mode <= 07777);
  }
  uint32_t depth_ = 0;
  uint64_t size_ = 0, end_ = 0, total_ = 0, logical_ = 0;
};

// By hand: a Writer wants a file.
struct Bytes {
  std::string text;
  template <typename T>
  void add(T value) {
    text.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void head(Kind kind, uint64_t size, const std::string& name, const std::string& more) {
    add(static_cast<uint8_t>(kind));
    add(uint8_t{0});
    add(static_cast<uint16_t>(name.size()));
    add(static_cast<uint32_t>(more.size()));
    for (uint32_t n : {0644u, 1000u, 1000u, 5u}) add(n);
    add(int64_t{1});
    add(size);
    text += name + more;
  }
};

std::string whole() {
  Bytes b;
  b.text.append(kArchiveMagic, sizeof(kArchiveMagic));
  b.add(kFormat);
  b.add(uint32_t{0});
  b.head(Kind::kLayer, 0, "", "usr");
  b.head(Kind::kGone, 0, "lost", "");
  b.head(Kind::kDirectory, 0, "d", "");
  b.head(Kind::kFile, 10, "f", "");
  b.add(uint64_t{4});
  b.add(uint64_t{3});
  b.text += "abc";
  b.add(uint64_t{10});
  b.add(uint64_t{0});
  b.head(Kind::kLink, 0, "g", "d/f");
  b.head(Kind::kSymlink, 0, "s", "/etc/passwd");
  b.head(Kind::kFifo, 0, "p", "");
  b.head(Kind::kLeave, 0, "", "");
  b.head(Kind::kLeave, 0, "", "");
  b.head(Kind::kLayer, 1, "", "");
  b.head(Kind::kLeave, 0, "", "");
  b.head(Kind::kEnd, 0, "", "");
  return b.text;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Memory source(data, size);
  Checker checker;
  try {
    decode(source, kBounds, checker);
  } catch (const Stop& stop) {
    require(stop.outcome == Outcome::kDamaged || stop.outcome == Outcome::kTooLarge);
  }
  return 0;
}

std::vector<std::string> cordon::fuzz::corpus() {
  return {whole(), std::string(64, '\0')};
}

void cordon::fuzz::repair(std::string&) {}
