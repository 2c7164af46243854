#include "broker/records.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <kj/debug.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "broker/private_directory.h"

namespace cordon::broker {

namespace {

constexpr char kTemporary[] = ".new-";  // no record's name begins with a dot

// Names in the directory, without "." and "..".
std::vector<std::string> namesIn(int dir) {
  int fd;
  KJ_SYSCALL(fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  DIR* stream = fdopendir(fd);
  if (stream == nullptr) {
    int error = errno;
    close(fd);
    KJ_FAIL_SYSCALL("fdopendir", error);
  }
  KJ_DEFER(closedir(stream));
  std::vector<std::string> names;
  while (dirent* entry = readdir(stream)) {
    std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(std::move(name));
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool saysFull(int error) {
  return error == ENOSPC || error == EDQUOT;
}

// errno when the disk is full, else 0.
int writeAll(int fd, kj::ArrayPtr<const kj::byte> bytes) {
  while (bytes.size() > 0) {
    ssize_t n = ::write(fd, bytes.begin(), bytes.size());
    if (n < 0) {
      int error = errno;
      if (error == EINTR) continue;
      if (saysFull(error)) return error;
      KJ_FAIL_SYSCALL("write", error);
    }
    bytes = bytes.slice(static_cast<size_t>(n), bytes.size());
  }
  return 0;
}

// At most one byte more than a record may have.
std::vector<kj::byte> readUpTo(int fd, size_t most) {
  std::vector<kj::byte> bytes(most + 1);
  size_t size = 0;
  while (size < bytes.size()) {
    ssize_t n;
    KJ_SYSCALL(n = ::read(fd, bytes.data() + size, bytes.size() - size));
    if (n == 0) break;
    size += static_cast<size_t>(n);
  }
  bytes.resize(size);
  return bytes;
}

// "" = a file that only we can have written.
std::string foreign(const struct stat& st) {
  if (!S_ISREG(st.st_mode)) return "not a regular file";
  if (st.st_uid != geteuid()) return "the file belongs to somebody else";
  if ((st.st_mode & 077) != 0) return "others can read or write the file";
  if (st.st_nlink != 1) return "the file has another name, too";
  if (st.st_size > static_cast<off_t>(kMaxRecordBytes)) return "not a record's size";
  return "";
}

}  // namespace

std::string currentBootId() {
  int fd;
  KJ_SYSCALL(fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  kj::AutoCloseFd owned(fd);
  auto bytes = readUpTo(fd, 64);
  std::string id(bytes.begin(), bytes.end());
  while (!id.empty() && id.back() == '\n') id.pop_back();
  return id;
}

Records::Records(const std::string& path) : path_(path), dir_(openPrivateDirectory(path, 0700)) {
  for (auto& name : namesIn(dir_.get())) {
    if (name.compare(0, sizeof(kTemporary) - 1, kTemporary) != 0) continue;
    if (unlinkat(dir_.get(), name.c_str(), 0) < 0 && errno != ENOENT && errno != EISDIR) {
      int error = errno;
      KJ_FAIL_SYSCALL("unlink", error, path_, name);
    }
  }
}

std::string Records::pathOf(const std::string& name) const {
  return path_ + "/" + name;
}

int Records::write(const SandboxRecord& given) {
  KJ_REQUIRE(isRecordName(given.name), "not a record's name", given.name);
  SandboxRecord record = given;
  if (record.bootId.empty()) record.bootId = currentBootId();
  auto bytes = encodeRecord(record);
  std::string temporary = kTemporary + record.name;
  // What a writer that died left under that name; EXCL then proves the file new.
  if (unlinkat(dir_.get(), temporary.c_str(), 0) < 0 && errno != ENOENT) {
    int error = errno;
    KJ_FAIL_SYSCALL("unlink", error, path_, temporary);
  }
  int fd = openat(dir_.get(), temporary.c_str(),
                  O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) {
    int error = errno;
    if (saysFull(error)) return error;
    KJ_FAIL_SYSCALL("open", error, path_, temporary);
  }
  kj::AutoCloseFd owned(fd);
  bool renamed = false;
  KJ_DEFER(if (!renamed) unlinkat(dir_.get(), temporary.c_str(), 0));
  if (int error = writeAll(fd, bytes)) return error;
  if (renameat(dir_.get(), temporary.c_str(), dir_.get(), record.name.c_str()) < 0) {
    int error = errno;
    if (saysFull(error)) return error;
    KJ_FAIL_SYSCALL("rename", error, path_, record.name);
  }
  renamed = true;
  return 0;
}

Records::Found Records::read(const std::string& name) const {
  Found found{name, nullptr, ""};
  int fd = openat(dir_.get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) {
    found.damage = errno == ELOOP ? "a symbolic link" : strerror(errno);
    return found;
  }
  kj::AutoCloseFd owned(fd);
  struct stat st {};
  KJ_SYSCALL(fstat(fd, &st), path_, name);
  found.damage = foreign(st);
  if (!found.damage.empty()) return found;
  auto bytes = readUpTo(fd, kMaxRecordBytes);
  found.record =
      decodeRecord(kj::ArrayPtr<const kj::byte>(bytes.data(), bytes.size()), found.damage);
  KJ_IF_MAYBE (record, found.record) {
    if (record->name != name) {
      found.damage = "the record of another sandbox";
      found.record = nullptr;
    }
  }
  return found;
}

kj::Maybe<Records::Found> Records::load(const std::string& name) const {
  if (!isRecordName(name)) return nullptr;
  if (faccessat(dir_.get(), name.c_str(), F_OK, AT_SYMLINK_NOFOLLOW) < 0) return nullptr;
  return read(name);
}

std::vector<Records::Found> Records::list(std::vector<std::string>* strange) const {
  std::vector<Found> all;
  for (auto& name : namesIn(dir_.get())) {
    if (isRecordName(name)) {
      all.push_back(read(name));
    } else if (strange != nullptr && name.compare(0, sizeof(kTemporary) - 1, kTemporary) != 0) {
      strange->push_back(name);
    }
  }
  return all;
}

int Records::remove(const std::string& name) {
  KJ_REQUIRE(isRecordName(name), "not a record's name", name);
  if (unlinkat(dir_.get(), name.c_str(), 0) == 0 || errno == ENOENT) return 0;
  return errno;
}

}  // namespace cordon::broker
