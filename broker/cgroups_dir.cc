#include "broker/cgroups_dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <kj/debug.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>

#include "ipc/open_beneath.h"

namespace cordon::broker {

namespace {

constexpr size_t kMaxChildren = 4096;
constexpr size_t kMaxFileBytes = 1 << 20;  // cgroup.procs of 32768 processes is far below

bool isGone(int error) {
  return error == ENOENT || error == ENODEV;
}

std::string readAll(int fd) {
  std::string text;
  char buffer[16384];
  while (text.size() < kMaxFileBytes) {
    ssize_t n = ::read(fd, buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;  // ENODEV: the cgroup went away while it was read
    text.append(buffer, static_cast<size_t>(n));
  }
  return text;
}

std::string trimmed(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text;
}

// "a/b/c" of "/a/b/c", component by component.
std::vector<std::string> components(const std::string& path) {
  std::vector<std::string> parts;
  size_t begin = 0;
  while (begin < path.size()) {
    size_t end = path.find('/', begin);
    if (end == std::string::npos) end = path.size();
    if (end > begin) parts.push_back(path.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

}  // namespace

kj::Maybe<CgroupDir> CgroupDir::child(const std::string& name) const {
  int fd = ipc::openBeneath(fd_.get(), name.c_str(), O_RDONLY | O_DIRECTORY);
  if (fd < 0) {
    int error = errno;
    if (isGone(error)) return nullptr;
    KJ_FAIL_SYSCALL("openat2", error, label_, name);
  }
  return CgroupDir(kj::AutoCloseFd(fd), label_ + "/" + name);
}

CgroupDir CgroupDir::makeChild(const std::string& name) const {
  int error = 0;
  KJ_IF_MAYBE (made, makeNewChild(name, error)) return kj::mv(*made);
  if (error != EEXIST) KJ_FAIL_SYSCALL("mkdir", error, label_, name);
  KJ_IF_MAYBE (dir, child(name)) {
    // Who owns it could change the limits of what we put below.
    struct stat st {};
    KJ_SYSCALL(fstat(dir->fd(), &st), dir->label());
    KJ_REQUIRE(st.st_uid == geteuid(), "the cgroup belongs to somebody else", dir->label());
    return kj::mv(*dir);
  }
  KJ_FAIL_SYSCALL("openat2", ENOENT, label_, name);
}

kj::Maybe<CgroupDir> CgroupDir::makeNewChild(const std::string& name, int& error) const {
  error = mkdirat(fd_.get(), name.c_str(), 0755) < 0 ? errno : 0;
  if (error != 0) return nullptr;
  // Nobody else would know of it.
  KJ_ON_SCOPE_FAILURE(unlinkat(fd_.get(), name.c_str(), AT_REMOVEDIR));
  auto made = child(name);
  if (made == nullptr) error = ENOENT;
  return made;
}

std::vector<std::string> CgroupDir::children() const {
  std::vector<std::string> names;
  // A fresh open: the offset of a directory is shared by duplicates.
  int fd = ipc::openBeneath(fd_.get(), ".", O_RDONLY | O_DIRECTORY);
  if (fd < 0) {
    int error = errno;
    // What can't be looked into is not empty.
    if (!isGone(error)) KJ_FAIL_SYSCALL("openat2", error, label_);
    return names;
  }
  DIR* stream = fdopendir(fd);
  if (stream == nullptr) {
    int error = errno;
    close(fd);
    KJ_FAIL_SYSCALL("fdopendir", error, label_);
  }
  KJ_DEFER(closedir(stream));
  // The kernel counts them in the links: a leaf's few dozen files needn't be read
  // for nothing, nor what comes behind the last.
  struct stat st {};
  KJ_SYSCALL(fstat(fd, &st), label_);
  size_t most = st.st_nlink >= 2 ? std::min<size_t>(st.st_nlink - 2, kMaxChildren) : kMaxChildren;
  if (most == 0) return names;
  while (dirent* entry = readdir(stream)) {
    if (entry->d_type != DT_DIR || entry->d_name[0] == '.') continue;
    names.emplace_back(entry->d_name);
    if (names.size() == most) break;
  }
  return names;
}

int CgroupDir::removeChild(const std::string& name) const {
  if (unlinkat(fd_.get(), name.c_str(), AT_REMOVEDIR) == 0) return 0;
  return isGone(errno) ? 0 : errno;
}

bool CgroupDir::has(const char* file) const {
  return faccessat(fd_.get(), file, F_OK, 0) == 0;
}

kj::Maybe<kj::AutoCloseFd> CgroupDir::openFile(const char* file, int flags) const {
  int fd = ipc::openBeneath(fd_.get(), file, flags);
  if (fd < 0) {
    int error = errno;
    if (isGone(error)) return nullptr;
    KJ_FAIL_SYSCALL("openat2", error, label_, file);
  }
  return kj::AutoCloseFd(fd);
}

kj::Maybe<std::string> CgroupDir::read(const char* file) const {
  KJ_IF_MAYBE (fd, openFile(file, O_RDONLY)) return readAll(fd->get());
  return nullptr;
}

int CgroupDir::write(const char* file, const std::string& text) const {
  int fd = ipc::openBeneath(fd_.get(), file, O_WRONLY);
  if (fd < 0) return errno;
  kj::AutoCloseFd owned(fd);
  ssize_t n;
  do {
    n = ::write(fd, text.data(), text.size());
  } while (n < 0 && errno == EINTR);
  if (n < 0) return errno;
  return static_cast<size_t>(n) == text.size() ? 0 : EIO;
}

std::vector<pid_t> CgroupDir::processes() const {
  std::vector<pid_t> pids;
  KJ_IF_MAYBE (text, read("cgroup.procs")) {
    const char* p = text->data();
    const char* end = p + text->size();
    while (p < end) {
      pid_t pid = 0;
      auto [next, error] = std::from_chars(p, end, pid);
      if (error != std::errc()) break;
      pids.push_back(pid);
      p = next + 1;
    }
  }
  return pids;
}

bool isCgroupName(const std::string& name) {
  if (name.empty() || name.size() > 64 || name[0] == '.') return false;
  for (char c : name) {
    bool ok = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
              c == '-' || c == '_' || c == '.';
    if (!ok) return false;
  }
  return true;
}

bool isCgroupPath(const std::string& path) {
  if (path.size() < 2 || path[0] != '/' || path.size() > 1024) return false;
  size_t begin = 1;
  while (true) {
    size_t end = path.find('/', begin);
    if (!isCgroupName(path.substr(begin, end == std::string::npos ? end : end - begin))) {
      return false;
    }
    if (end == std::string::npos) return true;
    begin = end + 1;
  }
}

kj::Maybe<CgroupDir> openBelow(const CgroupDir& root, const std::string& path) {
  auto parts = components(path);
  KJ_REQUIRE(!parts.empty());
  auto at = root.child(parts[0]);
  for (size_t i = 1; i < parts.size(); ++i) {
    KJ_IF_MAYBE (dir, at) {
      auto next = dir->child(parts[i]);
      at = kj::mv(next);
    }
  }
  return at;
}

CgroupDir makeBelow(const CgroupDir& root, const std::string& path) {
  auto parts = components(path);
  KJ_REQUIRE(!parts.empty());
  auto at = root.makeChild(parts[0]);
  for (size_t i = 1; i < parts.size(); ++i) at = at.makeChild(parts[i]);
  return at;
}

void retryWhileRemoved(const std::function<void()>& make) {
  constexpr int kTries = 10;
  for (int i = 0; i < kTries - 1; ++i) {
    if (kj::runCatchingExceptions([&] { make(); }) == nullptr) return;
  }
  make();
}

kj::Maybe<LimitNotApplied> applyLimit(const CgroupDir& dir, const char* file, uint64_t value,
                                      ReadBack readBack) {
  if (int error = dir.write(file, std::to_string(value))) return LimitNotApplied{file, error};
  KJ_IF_MAYBE (text, dir.read(file)) {
    uint64_t actual = 0;
    const char* begin = text->data();
    auto [end, error] = std::from_chars(begin, begin + text->size(), actual);
    bool number = error == std::errc() && (end == begin + text->size() || *end == '\n');
    uint64_t slack = readBack == ReadBack::kPages ? 4095 : 0;
    if (number && actual <= value && value - actual <= slack) return nullptr;
    return LimitNotApplied{file, 0};
  }
  return LimitNotApplied{file, ENOENT};
}

kj::Maybe<LimitNotApplied> applyText(const CgroupDir& dir, const char* file,
                                     const std::string& text) {
  if (int error = dir.write(file, text)) return LimitNotApplied{file, error};
  KJ_IF_MAYBE (actual, dir.read(file)) {
    if (trimmed(*actual) == text) return nullptr;
    return LimitNotApplied{file, 0};
  }
  return LimitNotApplied{file, ENOENT};
}

}  // namespace cordon::broker
