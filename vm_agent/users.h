// Whom a program runs as.
#pragma once
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace cordon::agent {

struct UserIds {
  uint32_t uid = 0;
  uint32_t gid = 0;
};

// Finds an entry of a passwd(5) file: by name, or by uid when `name` is empty.
// Reads at most 1 MiB; malformed and overlong lines are skipped. Returns
// nothing when there is no such entry or no such (regular) file.
std::optional<UserIds> findInPasswd(const char* path, std::string_view name, uint32_t uid);

struct UserResult {
  int error = 0;  // 0, EINVAL (malformed), ENOENT (no such name), EPERM (refused)
  UserIds ids;
};

// Resolves `start.user`: "", "NAME", "UID" or "UID:GID". The agent's own uid
// and ids outside a sandbox's 65,536 are refused.
UserResult resolveUser(std::string_view user, UserIds defaults, uint32_t agentUid,
                       const char* passwdPath);

}  // namespace cordon::agent
