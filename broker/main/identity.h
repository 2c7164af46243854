// Names of sandboxes and the secret that goes with one.
#pragma once
#include <string>

namespace cordon::broker {

// "sb-" and ten lower-case base32 characters, random.
std::string newSandboxName();
// The same with "sn-".
std::string newSnapshotName();
bool isSandboxName(const std::string& name);
std::string newToken();
std::string hashToken(const std::string& token);
// In constant time.
bool tokenMatches(const std::string& token, const std::string& hash);

}  // namespace cordon::broker
