#include "broker/ids.h"

#include <errno.h>
#include <fcntl.h>
#include <kj/debug.h>
#include <limits.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <fstream>
#include <iterator>
#include <sstream>
#include <utility>

#include "broker/private_directory.h"

namespace cordon::broker {

namespace {

// A broker is at one range at a time, so this many others are at work in this
// moment, or none is and somebody holds them all: no use in looking further.
constexpr uint32_t kMostBusy = 8;

struct Interval {
  uint64_t first, end;  // end: one past the last
  bool overlaps(const Interval& o) const { return first < o.end && o.first < end; }
};

// systemd's UIDS-GIDS: ids it gives out by itself.
struct NamedInterval {
  Interval ids;
  const char* what;
};
constexpr NamedInterval kSystemd[] = {
    {{61184, 65520}, "systemd's dynamic users"},
    {{65534, 65536}, "nobody and the overflow id"},
    {{524288, 1879048192}, "systemd's containers"},
    // Foreign images, and above them what signed 32-bit programs get wrong.
    {{2147352576, UINT64_MAX}, "systemd's foreign ids and ids above 2^31"},
};

bool number(const std::string& text, uint64_t& value) {
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

std::vector<std::vector<std::string>> fieldsOf(const std::string& text) {
  std::vector<std::vector<std::string>> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::vector<std::string> fields;
    std::istringstream parts(line);
    for (std::string part; std::getline(parts, part, ':');) fields.push_back(part);
    lines.push_back(std::move(fields));
  }
  return lines;
}

std::string show(const Interval& i) {
  return std::to_string(i.first) + "-" + std::to_string(i.end - 1);
}

void subordinate(const std::string& text, const char* file, const Interval& span,
                 std::vector<std::string>& out) {
  for (auto& fields : fieldsOf(text)) {
    uint64_t first = 0, count = 0;
    // A line that newuidmap can't read grants nothing.
    if (fields.size() != 3 || !number(fields[1], first) || !number(fields[2], count)) continue;
    Interval ids{first, first + count};
    if (count > 0 && ids.overlaps(span)) {
      out.push_back(std::string(file) + " gives " + show(ids) + " to " + fields[0]);
    }
  }
}

void accounts(const std::string& text, const char* file, const Interval& sandboxes,
              std::vector<std::string>& out) {
  for (auto& fields : fieldsOf(text)) {
    uint64_t id = 0;
    if (fields.size() < 3 || !number(fields[2], id)) continue;
    if (sandboxes.overlaps({id, id + 1})) {
      out.push_back(std::string(file) + " has " + fields[0] + " with id " + fields[2]);
    }
  }
}

// Empty when there is none.
std::string accountsFile(const char* path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// False only when nothing has that name any more.
bool exists(const std::string& path) {
  struct stat st {};
  if (lstat(path.c_str(), &st) == 0) return true;
  // Anything else (EACCES, EIO) says nothing: the claim holds.
  return errno != ENOENT && errno != ENOTDIR;
}

}  // namespace

kj::Maybe<IdSpan> parseIdSpan(const std::string& text) {
  size_t colon = text.find(':');
  uint64_t first = 0, ranges = 0;
  if (colon == std::string::npos || !number(text.substr(0, colon), first) ||
      !number(text.substr(colon + 1), ranges)) {
    return nullptr;
  }
  if (first == 0 || first % kIdsPerRange != 0 || ranges < 2 || ranges > 32768) return nullptr;
  if (first > INT32_MAX || first + ranges * kIdsPerRange > uint64_t{1} << 31) return nullptr;
  return IdSpan{static_cast<uint32_t>(first), static_cast<uint32_t>(ranges)};
}

IdSources IdSources::ofThisHost() {
  return {accountsFile("/etc/subuid"), accountsFile("/etc/subgid"), accountsFile("/etc/passwd"),
          accountsFile("/etc/group")};
}

std::vector<std::string> idConflicts(const IdSpan& span, const IdSources& sources,
                                     const std::vector<uint32_t>& serviceIds) {
  std::vector<std::string> out;
  Interval all{span.first, span.first + uint64_t{span.ranges} * kIdsPerRange};
  Interval sandboxes{all.first + kIdsPerRange, all.end};
  for (auto& reserved : kSystemd) {
    if (reserved.ids.overlaps(all)) {
      out.push_back(show(all) + " overlaps " + reserved.what);
    }
  }
  subordinate(sources.subuid, "/etc/subuid", all, out);
  subordinate(sources.subgid, "/etc/subgid", all, out);
  accounts(sources.passwd, "/etc/passwd", sandboxes, out);
  accounts(sources.group, "/etc/group", sandboxes, out);
  for (uint32_t id : serviceIds) {
    if (sandboxes.overlaps({id, uint64_t{id} + 1})) {
      out.push_back("the service's id " + std::to_string(id) + " lies in a sandbox's range");
    }
  }
  return out;
}

class IdRegistry::SlotLock {
 public:
  SlotLock(int fd, uint32_t slot) : fd_(fd), slot_(slot) {}
  SlotLock(SlotLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)), slot_(other.slot_) {}
  SlotLock& operator=(SlotLock&&) = delete;
  ~SlotLock() {
    if (fd_ >= 0) set(fd_, slot_, F_UNLCK);
  }
  KJ_DISALLOW_COPY(SlotLock);

  // False, with errno, when it could not.
  static bool set(int fd, uint32_t slot, short type) {
    struct flock lock {};
    lock.l_type = type;
    lock.l_whence = SEEK_SET;
    lock.l_start = slot;
    lock.l_len = 1;
    return fcntl(fd, F_OFD_SETLK, &lock) == 0;
  }

 private:
  int fd_;
  uint32_t slot_;
};

IdRegistry::IdRegistry(const std::string& path, IdSpan span)
    : span_(span), dir_(openPrivateDirectory(path, 0755)), next_(0) {
  KJ_REQUIRE(span_.ranges >= 2, "the id span has no range for a sandbox");
  int fd;
  KJ_SYSCALL(fd = openat(dir_.get(), ".lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  locks_ = kj::AutoCloseFd(fd);
  // Each broker starts elsewhere, and none where an earlier one did.
  KJ_SYSCALL(getrandom(&next_, sizeof(next_), 0));
}

kj::Maybe<IdRegistry::SlotLock> IdRegistry::tryLock(uint32_t slot) const {
  if (SlotLock::set(locks_.get(), slot, F_WRLCK)) return SlotLock(locks_.get(), slot);
  int error = errno;
  if (error == EAGAIN || error == EACCES) return nullptr;
  KJ_FAIL_SYSCALL("fcntl(F_OFD_SETLK)", error, slot);
}

std::string IdRegistry::holderOf(uint32_t slot) const {
  char target[PATH_MAX];
  ssize_t n = readlinkat(dir_.get(), std::to_string(slot).c_str(), target, sizeof(target));
  if (n < 0) {
    int error = errno;
    if (error == ENOENT) return "";
    // Not a link: nobody's, and never free.
    if (error == EINVAL) return "/";
    KJ_FAIL_SYSCALL("readlink", error, slot);
  }
  return {target, static_cast<size_t>(n)};
}

bool IdRegistry::isFree(uint32_t slot) const {
  std::string holder = holderOf(slot);
  return holder.empty() || !exists(holder);
}

bool IdRegistry::take(const ClaimedRange& range, const std::string& recordPath,
                      const std::function<void(const ClaimedRange&)>& writeRecord) {
  std::string name = std::to_string(range.slot);
  if (unlinkat(dir_.get(), name.c_str(), 0) < 0 && errno != ENOENT) {  // a stale one
    int error = errno;
    KJ_FAIL_SYSCALL("unlink", error, range.slot);
  }
  KJ_SYSCALL(symlinkat(recordPath.c_str(), dir_.get(), name.c_str()), range.slot);
  bool kept = false;
  KJ_DEFER(if (!kept) unlinkat(dir_.get(), name.c_str(), 0));
  writeRecord(range);
  return kept = exists(recordPath);
}

kj::OneOf<ClaimedRange, IdRefusal, IdsBusy> IdRegistry::claim(
    const std::string& recordPath, const std::function<void(const ClaimedRange&)>& writeRecord) {
  KJ_REQUIRE(!recordPath.empty() && recordPath[0] == '/' && recordPath.size() < PATH_MAX);
  const uint32_t slots = span_.ranges - 1;
  const uint32_t first = next_ % slots;
  uint32_t busy = 0;
  for (uint32_t i = 0; i < slots && busy < kMostBusy; ++i) {
    uint32_t slot = 1 + (first + i) % slots;
    // Without the lock first: whoever gives his own back finds nobody at it.
    if (!isFree(slot)) continue;
    // slot - 1 is its index: the next search begins behind it.
    next_ = slot;
    KJ_IF_MAYBE (lock, tryLock(slot)) {
      if (!isFree(slot)) continue;
      ClaimedRange range{slot, span_.first + slot * kIdsPerRange, kIdsPerRange};
      if (take(range, recordPath, writeRecord)) return range;
      return IdRefusal{rpc::Reason::STATE_FULL, "the record was not written"};
    }
    ++busy;
  }
  if (busy > 0) return IdsBusy{};
  return IdRefusal{rpc::Reason::ID_RANGES_EXHAUSTED,
                   "all " + std::to_string(slots) + " id ranges are in use"};
}

kj::Maybe<int> IdRegistry::release(uint32_t slot, const std::string& recordPath,
                                   const std::function<int()>& removeRecord) {
  if (!isOurs(slot)) return removeRecord();
  KJ_IF_MAYBE (lock, tryLock(slot)) {
    // The record first: a claim without a record is stale and harmless, a record
    // whose range somebody else has is not.
    if (int error = removeRecord()) return error;
    if (holderOf(slot) != recordPath) return 0;
    if (unlinkat(dir_.get(), std::to_string(slot).c_str(), 0) == 0 || errno == ENOENT) return 0;
    return errno;
  }
  return nullptr;
}

size_t IdRegistry::unclaimStale() {
  size_t removed = 0;
  for (uint32_t slot = 1; slot < span_.ranges; ++slot) {
    auto stale = [&]() {
      std::string holder = holderOf(slot);
      return !holder.empty() && !exists(holder);
    };
    if (!stale()) continue;
    KJ_IF_MAYBE (lock, tryLock(slot)) {
      if (stale() && unlinkat(dir_.get(), std::to_string(slot).c_str(), 0) == 0) ++removed;
    }
  }
  return removed;
}

}  // namespace cordon::broker
