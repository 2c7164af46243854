#include "runtimes/oci/runc_files.h"

#include <errno.h>
#include <fcntl.h>
#include <kj/debug.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "runtimes/oci/runc_scratch.h"
#include "runtimes/remove_tree.h"

namespace cordon::runtimes {

namespace {

constexpr size_t kOutputBytes = 8192;
constexpr size_t kLoggedBytes = 2048;
constexpr char kNamespaceFile[] = "cgroup-namespace";

kj::Maybe<kj::AutoCloseFd> openDirectory(const std::string& path) {
  int fd = open(path.c_str(), O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC | O_RDONLY);
  if (fd >= 0) return kj::AutoCloseFd(fd);
  int error = errno;
  if (error == ENOENT) return nullptr;
  KJ_FAIL_SYSCALL("open of a sandbox's directory", error, path);
}

// The last `most` bytes of a small file; "" when there is none.
std::string readTail(const std::string& directory, const char* name, size_t most) {
  KJ_IF_MAYBE (parent, openDirectory(directory)) {
    int raw = openat(*parent, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (raw < 0) return "";
    kj::AutoCloseFd file(raw);
    struct stat status;
    KJ_SYSCALL(fstat(file, &status));
    if (!S_ISREG(status.st_mode)) return "";
    std::string bytes(most, '\0');
    ssize_t got;
    KJ_SYSCALL(got = pread(file, bytes.data(), most,
                           std::max<off_t>(0, status.st_size - static_cast<off_t>(most))));
    bytes.resize(static_cast<size_t>(got));
    return bytes;
  }
  return "";
}

std::string escaped(const std::string& bytes) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string text;
  for (char c : bytes) {
    auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f && c != '\\') {
      text += c;
    } else {
      text += "\\x";
      text += kHex[byte >> 4];
      text += kHex[byte & 15];
    }
  }
  return text;
}

void writeWhole(int parent, const char* name, const std::string& text) {
  int raw;
  KJ_SYSCALL(raw = openat(parent, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600),
             name);
  kj::AutoCloseFd file(raw);
  kj::FdOutputStream(file.get()).write(text.data(), text.size());
}

// What is mounted on files there: the cgroup namespace, and the copy of itself
// that a runc which was killed leaves.
void unmountFiles(const std::string& directory) {
  auto detach = [](const std::string& path) {
    // Where nothing is mounted it says EINVAL, and that is fine.
    umount2(path.c_str(), MNT_DETACH | UMOUNT_NOFOLLOW);
  };
  detach(directory + "/" + kNamespaceFile);
  std::error_code error;
  for (std::filesystem::recursive_directory_iterator at(directory + "/" + kStateDir, error), end;
       !error && at != end; at.increment(error)) {
    if (at->path().filename().string().rfind("runc.", 0) == 0) detach(at->path());
  }
}

std::vector<broker::LeftOver> removeFiles(int directory) {
  std::vector<broker::LeftOver> left;
  // The dotted name is what runc renames to the pid file.
  for (const char* name :
       {kBundleDir, kStateDir, kPidFile, ".init.pid", kLogFile, kNamespaceFile}) {
    for (broker::LeftOver& item : removeTree(directory, name)) left.push_back(std::move(item));
  }
  return left;
}

}  // namespace

void writeRuncFiles(const std::string& directory, const std::string& config) {
  kj::AutoCloseFd parent;
  KJ_IF_MAYBE (opened, openDirectory(directory)) {
    parent = kj::mv(*opened);
  } else {
    KJ_FAIL_REQUIRE("the sandbox's directory does not exist", directory);
  }
  KJ_SYSCALL(mkdirat(parent, kBundleDir, 0700));
  // Mapped ids pass through it on the way to what runc keeps for the init.
  KJ_SYSCALL(mkdirat(parent, kStateDir, 0711));
  int bundle;
  KJ_SYSCALL(bundle = openat(parent, kBundleDir, O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  kj::AutoCloseFd owned(bundle);
  writeWhole(bundle, "config.json", config);
}

std::optional<pid_t> readPidFile(const std::string& directory) {
  std::string text = readTail(directory, kPidFile, 16);
  pid_t pid = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), pid);
  bool whole = end == text.data() + text.size() || *end == '\n';
  if (error != std::errc() || !whole || pid <= 1) return std::nullopt;
  return pid;
}

std::string bindNamespace(const std::string& directory, int fd) {
  KJ_IF_MAYBE (parent, openDirectory(directory)) writeWhole(*parent, kNamespaceFile, "");
  std::string path = directory + "/" + kNamespaceFile;
  std::string source = "/proc/self/fd/" + std::to_string(fd);
  KJ_SYSCALL(mount(source.c_str(), path.c_str(), nullptr, MS_BIND, nullptr), path);
  return path;
}

std::vector<broker::LeftOver> removeRuncFiles(const std::string& directory) {
  // Before anything is removed by name: what is in it was written in the sandbox.
  unmountScratch(directory);
  KJ_IF_MAYBE (parent, openDirectory(directory)) {
    auto left = removeFiles(*parent);
    auto inTheWay = [](const broker::LeftOver& item) { return item.error == EBUSY; };
    if (std::none_of(left.begin(), left.end(), inTheWay)) return left;
    unmountFiles(directory);
    return removeFiles(*parent);
  }
  return {};
}

kj::AutoCloseFd makeOutputFile() {
  int raw;
  KJ_SYSCALL(raw = memfd_create("runc-output", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  kj::AutoCloseFd file(raw);
  KJ_SYSCALL(ftruncate(file, kOutputBytes));
  KJ_SYSCALL(fcntl(file, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL));
  return file;
}

std::string readOutputFile(int fd) {
  std::string bytes(kOutputBytes, '\0');
  ssize_t got;
  KJ_SYSCALL(got = pread(fd, bytes.data(), bytes.size(), 0));
  bytes.resize(static_cast<size_t>(got));
  bytes.resize(std::min(bytes.find('\0'), bytes.size()));
  return bytes;
}

std::string describeRuncOutput(const std::string& directory, int output) {
  std::string bytes = readTail(directory, kLogFile, kLoggedBytes);
  if (bytes.empty()) bytes = readOutputFile(output).substr(0, kLoggedBytes);
  return escaped(bytes);
}

}  // namespace cordon::runtimes
