#include "broker/snapshots.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <kj/debug.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "broker/private_directory.h"
#include "ipc/open_beneath.h"

namespace cordon::broker {

namespace {

constexpr char kHalfMade[] = ".new-";
constexpr char kForgotten[] = ".gone-";
constexpr char kMeta[] = "meta";
constexpr char kData[] = "data";

// -1 and errno.
int openInside(int directory, const char* path, int flags) {
  return ipc::openBeneath(directory, path, flags | O_NOFOLLOW | O_NONBLOCK);
}

std::vector<std::string> entriesOf(int directory) {
  std::vector<std::string> names;
  int fd = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return names;
  std::unique_ptr<DIR, int (*)(DIR*)> stream(fdopendir(fd), closedir);
  if (stream == nullptr) {
    close(fd);
    return names;
  }
  while (dirent* entry = readdir(stream.get())) {
    std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(std::move(name));
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool startsWith(const std::string& text, const char* prefix) {
  return text.compare(0, strlen(prefix), prefix) == 0;
}

// A directory of ours and what is in it: files alone, where nobody interfered.
void removeDirectory(int store, const std::string& name) {
  int fd = openInside(store, name.c_str(), O_RDONLY | O_DIRECTORY);
  if (fd >= 0) {
    for (auto& each : entriesOf(fd)) unlinkat(fd, each.c_str(), 0);
    close(fd);
  }
  unlinkat(store, name.c_str(), AT_REMOVEDIR);
}

// "" when it is a file that we wrote.
std::string foreignFile(const struct stat& st) {
  if (!S_ISREG(st.st_mode)) return "not a regular file";
  if (st.st_uid != geteuid()) return "belongs to somebody else";
  if ((st.st_mode & 077) != 0) return "can be read or written by others";
  if (st.st_nlink != 1) return "has another name, too";
  return "";
}

// A file of a snapshot; `damage` where it is none.
kj::AutoCloseFd openOwnFile(int store, const std::string& path, struct stat& st,
                            std::string& damage) {
  int fd = openInside(store, path.c_str(), O_RDONLY);
  if (fd < 0) {
    damage = std::string("can't be opened: ") + strerror(errno);
    return nullptr;
  }
  kj::AutoCloseFd owned(fd);
  KJ_SYSCALL(fstat(fd, &st));
  damage = foreignFile(st);
  return owned;
}

}  // namespace

bool isSnapshotName(const std::string& name) {
  return name.size() == 13 && name.compare(0, 3, "sn-") == 0 &&
         name.find_first_not_of("abcdefghijklmnopqrstuvwxyz234567", 3) == std::string::npos;
}

std::string thisMachine() {
  utsname names{};
  KJ_SYSCALL(uname(&names));
  return names.machine;
}

// --------------------------------------------------------------------- a draft

int SnapshotStore::Draft::open() noexcept {
  std::string temporary = kHalfMade + name_;
  if (mkdirat(store_, temporary.c_str(), 0700) < 0) return errno;
  made_ = true;
  directory_ = kj::AutoCloseFd(openInside(store_, temporary.c_str(), O_RDONLY | O_DIRECTORY));
  if (directory_.get() < 0) return errno;
  archive_ = kj::AutoCloseFd(
      openat(directory_, kData, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  return archive_.get() < 0 ? errno : 0;
}

SnapshotStore::Draft::~Draft() noexcept(false) {
  if (made_) removeDirectory(store_, kHalfMade + name_);
}

int SnapshotStore::Draft::commit(kj::ArrayPtr<const kj::byte> meta) noexcept {
  int fd = openat(directory_, kMeta, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) return errno;
  ssize_t n = write(fd, meta.begin(), meta.size());
  int error = n < 0 ? errno : n == static_cast<ssize_t>(meta.size()) ? 0 : EIO;
  if (error == 0 && fsync(fd) < 0) error = errno;
  close(fd);
  if (error == 0 && fsync(directory_) < 0) error = errno;
  if (error != 0) return error;
  std::string temporary = kHalfMade + name_;
  if (renameat2(store_, temporary.c_str(), store_, name_.c_str(), RENAME_NOREPLACE) < 0) {
    return errno;
  }
  made_ = false;  // no longer ours to remove
  // It is whole under its name; that the name lasts is a matter of the disk.
  (void)fsync(store_);
  return 0;
}

// ------------------------------------------------------------------- the store

SnapshotStore::SnapshotStore(const std::string& path, const SnapshotCaps& caps,
                             std::vector<std::string>* damaged)
    : path_(path), caps_(caps), dir_(openPrivateDirectory(path, 0700)) {
  struct stat st;
  KJ_SYSCALL(fstat(dir_, &st), path);
  KJ_REQUIRE((st.st_mode & 077) == 0, "the snapshots can be read by others", path);
  purge(dir_);
  for (auto& name : entriesOf(dir_)) {
    if (startsWith(name, kHalfMade)) {
      removeDirectory(dir_, name);
      continue;
    }
    if (!isSnapshotName(name)) continue;
    std::string damage;
    auto record = read(name, damage);
    KJ_IF_MAYBE (good, record) {
      records_[name] = kj::mv(*good);
    } else if (damaged != nullptr) {
      damaged->push_back(name + ": " + damage);
    }
  }
}

uint32_t SnapshotStore::countOf(kj::Maybe<uint32_t> owner) const {
  KJ_IF_MAYBE (uid, owner) {
    auto own = static_cast<size_t>(std::count_if(
        places_.begin(), places_.end(), [&](auto* place) { return place->owner_ == *uid; }));
    return static_cast<uint32_t>(of(*uid).size() + own);
  }
  return static_cast<uint32_t>(records_.size() + places_.size());
}

uint64_t SnapshotStore::roomFor(uint32_t owner) const {
  uint64_t all = 0, own = 0;
  for (auto& [name, record] : records_) {
    all += record.archiveBytes;
    if (record.ownerUid == owner) own += record.archiveBytes;
  }
  for (auto* place : places_) {
    all += place->bytes;
    if (place->owner_ == owner) own += place->bytes;
  }
  return std::min(caps_.bytes - std::min(all, caps_.bytes),
                  caps_.bytesPerOwner - std::min(own, caps_.bytesPerOwner));
}

kj::OneOf<kj::Own<SnapshotStore::Draft>, int> SnapshotStore::begin(const std::string& name) {
  KJ_REQUIRE(isSnapshotName(name), "not a snapshot's name", name);
  int store = fcntl(dir_, F_DUPFD_CLOEXEC, 3);
  if (store < 0) return int{errno};
  auto draft = kj::heap<Draft>(store, name);
  if (int error = draft->open()) return int{error};
  return kj::mv(draft);
}

void SnapshotStore::add(SnapshotRecord record) {
  auto name = record.name;
  records_[name] = std::move(record);
}

kj::Maybe<const SnapshotRecord&> SnapshotStore::find(uint32_t owner, const std::string& name,
                                                     const std::string& tokenHash) const {
  auto it = records_.find(name);
  if (it == records_.end() || it->second.ownerUid != owner) return nullptr;
  auto& expected = it->second.tokenHash;
  // In constant time.
  unsigned different = expected.size() != tokenHash.size();
  for (size_t i = 0; i < expected.size() && i < tokenHash.size(); ++i) {
    different |= static_cast<unsigned char>(expected[i] ^ tokenHash[i]);
  }
  if (different != 0) return nullptr;
  return it->second;
}

std::vector<const SnapshotRecord*> SnapshotStore::of(uint32_t owner) const {
  std::vector<const SnapshotRecord*> own;
  for (auto& [name, record] : records_) {
    if (record.ownerUid == owner) own.push_back(&record);
  }
  return own;
}

kj::OneOf<kj::AutoCloseFd, std::string> SnapshotStore::open(const SnapshotRecord& record) const {
  std::string damage;
  auto again = read(record.name, damage);
  if (again == nullptr) return "its record " + damage;
  auto now = encodeSnapshot(KJ_ASSERT_NONNULL(again));
  if (now != encodeSnapshot(record)) return std::string("its record is not what was written");
  struct stat st;
  auto file = openOwnFile(dir_, record.name + "/" + kData, st, damage);
  if (!damage.empty()) return "its content " + damage;
  if (static_cast<uint64_t>(st.st_size) != record.archiveBytes) {
    return std::string("its content has not the length that was written");
  }
  return kj::mv(file);
}

kj::Maybe<SnapshotRecord> SnapshotStore::read(const std::string& name, std::string& damage) const {
  struct stat st;
  auto file = openOwnFile(dir_, name + "/" + kMeta, st, damage);
  if (!damage.empty()) return nullptr;
  if (st.st_size > static_cast<off_t>(kMaxSnapshotRecordBytes)) {
    damage = "has not a record's size";
    return nullptr;
  }
  auto bytes = kj::heapArray<kj::byte>(static_cast<size_t>(st.st_size));
  if (pread(file, bytes.begin(), bytes.size(), 0) != st.st_size) {
    damage = "can't be read";
    return nullptr;
  }
  auto record = decodeSnapshot(bytes, damage);
  KJ_IF_MAYBE (good, record) {
    if (good->name == name) return kj::mv(*good);
    damage = "is that of another snapshot";
  }
  return nullptr;
}

void SnapshotStore::forget(const std::string& name) {
  records_.erase(name);
  std::string gone = kForgotten + name;
  if (renameat(dir_, name.c_str(), dir_, gone.c_str()) < 0 && errno != ENOENT) {
    int error = errno;
    KJ_FAIL_SYSCALL("rename", error, name);
  }
}

void SnapshotStore::purge(int store) noexcept {
  for (auto& name : entriesOf(store)) {
    if (startsWith(name, kForgotten)) removeDirectory(store, name);
  }
}

}  // namespace cordon::broker
