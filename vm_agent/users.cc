#include "vm_agent/users.h"

#include <fcntl.h>
#include <kj/io.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <string>

namespace cordon::agent {

namespace {

constexpr size_t kMaxPasswdBytes = 1 << 20;
constexpr size_t kMaxLine = 1024;
constexpr size_t kMaxUserText = 256;
constexpr uint32_t kIdCount = 65536;

std::optional<uint32_t> parseId(std::string_view text) {
  uint32_t value = 0;
  auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || stop != text.data() + text.size()) return std::nullopt;
  return value;
}

// The next colon-separated field of `rest`.
std::optional<std::string_view> field(std::string_view& rest) {
  size_t colon = rest.find(':');
  if (colon == std::string_view::npos) return std::nullopt;
  auto result = rest.substr(0, colon);
  rest.remove_prefix(colon + 1);
  return result;
}

// name:password:uid:gid:…
std::optional<UserIds> matchLine(std::string_view line, std::string_view name, uint32_t uid) {
  auto entry = field(line);
  if (!entry || entry->empty() || !field(line)) return std::nullopt;
  auto uidText = field(line);
  auto gidText = field(line);
  if (!uidText || !gidText) return std::nullopt;
  auto lineUid = parseId(*uidText);
  auto lineGid = parseId(*gidText);
  if (!lineUid || !lineGid) return std::nullopt;
  bool match = name.empty() ? *lineUid == uid : *entry == name;
  if (!match) return std::nullopt;
  return UserIds{*lineUid, *lineGid};
}

}  // namespace

std::optional<UserIds> findInPasswd(const char* path, std::string_view name, uint32_t uid) {
  // O_NONBLOCK: an image might have a fifo there.
  int raw = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (raw < 0) return std::nullopt;
  kj::AutoCloseFd fd(raw);
  struct stat info;
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) return std::nullopt;

  char buffer[4096];
  std::string line;
  bool overlong = false;
  size_t seen = 0;
  while (seen < kMaxPasswdBytes) {
    ssize_t got = read(fd, buffer, sizeof(buffer));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    seen += static_cast<size_t>(got);
    for (ssize_t i = 0; i < got; ++i) {
      if (buffer[i] != '\n') {
        overlong = overlong || line.size() >= kMaxLine;
        if (!overlong) line += buffer[i];
        continue;
      }
      if (!overlong) {
        if (auto found = matchLine(line, name, uid)) return found;
      }
      line.clear();
      overlong = false;
    }
  }
  return overlong || seen >= kMaxPasswdBytes ? std::nullopt : matchLine(line, name, uid);
}

UserResult resolveUser(std::string_view user, UserIds defaults, uint32_t agentUid,
                       const char* passwdPath) {
  if (user.size() > kMaxUserText || user.find('\0') != std::string_view::npos) return {EINVAL, {}};
  UserIds ids;
  size_t colon = user.find(':');
  bool numeric = !user.empty() && user[0] >= '0' && user[0] <= '9';
  if (user.empty()) {
    ids = defaults;
  } else if (colon != std::string_view::npos) {
    auto uid = parseId(user.substr(0, colon));
    auto gid = parseId(user.substr(colon + 1));
    if (!uid || !gid) return {EINVAL, {}};
    ids = {*uid, *gid};
  } else if (numeric) {
    auto uid = parseId(user);
    if (!uid) return {EINVAL, {}};
    if (auto found = findInPasswd(passwdPath, "", *uid)) {
      ids = *found;
    } else {
      ids = {*uid, *uid == defaults.uid ? defaults.gid : *uid};
    }
  } else {
    auto found = findInPasswd(passwdPath, user, 0);
    if (!found) return {ENOENT, {}};
    ids = *found;
  }
  // With the agent's uid a program could change the agent's rlimits; its gid is
  // the same number. Ids past the sandbox's own are nobody's to give.
  if (ids.uid == agentUid || ids.gid == agentUid) return {EPERM, ids};
  if (ids.uid >= kIdCount || ids.gid >= kIdCount) return {EPERM, ids};
  return {0, ids};
}

}  // namespace cordon::agent
