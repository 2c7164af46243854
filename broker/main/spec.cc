#include "broker/main/spec.h"

#include <algorithm>
#include <string_view>

namespace cordon::broker {

namespace {
constexpr uint64_t kDefaultTtlMs = 60 * 60 * 1000;
constexpr uint64_t kDefaultIdleMs = 15 * 60 * 1000;
constexpr uint64_t kLongestMs = uint64_t{7} * 24 * 60 * 60 * 1000;
constexpr size_t kMaxName = 64;
constexpr size_t kMaxImageName = 255;
constexpr size_t kMaxHostname = 63;  // of Linux

std::string_view view(capnp::Text::Reader text) {
  return {text.begin(), text.size()};
}

bool isAlnum(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

Failure badName(const char* subject, std::string detail) {
  auto refused = failure(rpc::Reason::BAD_NAME, std::move(detail));
  refused.subject = subject;
  return refused;
}

bool validHostname(std::string_view name) {
  if (name.size() > kMaxHostname || name.front() == '-' || name.back() == '-') return false;
  return std::all_of(name.begin(), name.end(), [](char c) { return isAlnum(c) || c == '-'; });
}

bool printable(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 0x7f; });
}

kj::OneOf<kj::Duration, Failure> time(uint64_t asked, uint64_t byDefault, const char* subject) {
  if (asked > kLongestMs) {
    auto refused = failure(rpc::Reason::LIMIT_TOO_HIGH, "longer than a sandbox may live");
    refused.subject = subject;
    refused.limit = kLongestMs;
    return refused;
  }
  return static_cast<int64_t>(asked != 0 ? asked : byDefault) * kj::MILLISECONDS;
}
}  // namespace

kj::OneOf<ValidSpec, Failure> validateSpec(rpc::SandboxSpec::Reader asked,
                                           const Ceilings& ceilings) {
  ValidSpec spec;
  auto runtime = view(asked.getRuntime());
  if (runtime.size() > kMaxName || !printable(runtime)) {
    return badName("runtime", "the runtime's name is no name");
  }
  spec.runtime = std::string(runtime);

  auto image = view(asked.getImage());
  if (image.size() > kMaxImageName || !printable(image)) {
    return badName("image", "the image's name is no name");
  }
  spec.image = std::string(image);

  auto hostname = view(asked.getHostname());
  if (!hostname.empty() && !validHostname(hostname)) {
    return badName("hostname", "a hostname has at most 63 letters, digits and '-'");
  }
  spec.hostname = std::string(hostname);

  auto seccomp = view(asked.getSeccomp());
  if (seccomp.size() > kMaxName || !printable(seccomp)) {
    return badName("seccomp", "the seccomp profile's name is no name");
  }
  spec.seccomp = std::string(seccomp);
  spec.explain = asked.getExplain();

  auto ttl = time(asked.getTtlMs(), kDefaultTtlMs, "ttlMs");
  if (ttl.is<Failure>()) return ttl.get<Failure>();
  spec.ttl = ttl.get<kj::Duration>();
  auto idle = time(asked.getIdleMs(), kDefaultIdleMs, "idleMs");
  if (idle.is<Failure>()) return idle.get<Failure>();
  spec.idle = idle.get<kj::Duration>();

  auto limits = resolveLimits(asked.getLimits(), ceilings);
  if (limits.is<LimitRefusal>()) {
    auto& why = limits.get<LimitRefusal>();
    auto refused = failure(why.reason, why.detail);
    refused.subject = why.subject;
    refused.limit = why.limit;
    return refused;
  }
  spec.limits = limits.get<ResolvedLimits>();
  return spec;
}

}  // namespace cordon::broker
