#include "broker/main/identity.h"

#include <kj/debug.h>
#include <sha256.h>
#include <string.h>
#include <sys/random.h>

#include <array>

namespace cordon::broker {

namespace {
constexpr char kBase32[] = "abcdefghijklmnopqrstuvwxyz234567";
constexpr char kHex[] = "0123456789abcdef";

template <size_t N>
std::array<unsigned char, N> randomBytes() {
  std::array<unsigned char, N> bytes;
  ssize_t n;
  KJ_SYSCALL(n = getrandom(bytes.data(), N, 0));
  KJ_ASSERT(n == static_cast<ssize_t>(N));
  return bytes;
}
std::string newName(const char* prefix) {
  std::string name = prefix;
  for (auto byte : randomBytes<10>()) name += kBase32[byte % 32];
  return name;
}
}  // namespace

std::string newSandboxName() {
  return newName("sb-");
}

std::string newSnapshotName() {
  return newName("sn-");
}

bool isSandboxName(const std::string& name) {
  return name.size() == 13 && name.compare(0, 3, "sb-") == 0 &&
         name.find_first_not_of(kBase32, 3) == std::string::npos;
}

std::string newToken() {
  std::string token;
  for (auto byte : randomBytes<16>()) {
    token += kHex[byte >> 4];
    token += kHex[byte & 15];
  }
  return token;
}

std::string hashToken(const std::string& token) {
  char hex[SHA256_DIGEST_STRING_LENGTH];
  SHA256Data(reinterpret_cast<const uint8_t*>(token.data()), token.size(), hex);
  return hex;
}

bool tokenMatches(const std::string& token, const std::string& hash) {
  std::string asked = hashToken(token);
  if (asked.size() != hash.size()) return false;
  unsigned different = 0;
  for (size_t i = 0; i < hash.size(); ++i) {
    different |= static_cast<unsigned char>(asked[i] ^ hash[i]);
  }
  return different == 0;
}

}  // namespace cordon::broker
