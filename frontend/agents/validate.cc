#include "frontend/agents/validate.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include "ipc/guest.capnp.h"

namespace cordon::agents {
namespace {

constexpr size_t kLongestName = 255;  // of a runtime or an image
constexpr size_t kLongestPath = 4095;
constexpr size_t kLongestUser = 32;
constexpr uint64_t kLargestUid = 0xfffffffe;
constexpr size_t kNameLength = 13;  // sb-xxxxxxxxxx
constexpr size_t kTokenLength = 32;
// The defaults of environment() must still fit, whatever was asked for.
constexpr size_t kRoomForDefaults = 4;

[[noreturn]] void refuse(std::string reason, std::string subject, std::string message,
                         uint64_t limit = 0) {
  throw Refused{invalid(std::move(reason), std::move(subject), std::move(message), limit)};
}

bool isLowerOrDigit(char c, char firstDigit, char lastDigit) {
  return (c >= 'a' && c <= 'z') || (c >= firstDigit && c <= lastDigit);
}

bool isHex(char c) {
  return (c >= 'a' && c <= 'f') || (c >= '0' && c <= '9');
}

// NAME.TOKEN
bool isId(const std::string& id, const char* prefix) {
  bool good = id.size() == kNameLength + 1 + kTokenLength && id.starts_with(prefix) &&
              id[kNameLength] == '.';
  for (size_t i = 3; good && i < kNameLength; ++i) good = isLowerOrDigit(id[i], '2', '7');
  for (size_t i = kNameLength + 1; good && i < id.size(); ++i) good = isHex(id[i]);
  return good;
}

bool hasNul(std::string_view text) {
  return text.find('\0') != std::string_view::npos;
}

// A limit that was given must be positive; `largest` is what its field holds.
uint64_t positive(int64_t value, const char* field, uint64_t largest = INT64_MAX) {
  if (value == 0) refuse("LIMIT_ZERO", field, std::string(field) + " must be above zero");
  if (value < 0) refuse("LIMIT_NEGATIVE", field, std::string(field) + " must be above zero");
  if (static_cast<uint64_t>(value) > largest) {
    refuse("LIMIT_TOO_HIGH", field, std::string(field) + " is too large", largest);
  }
  return static_cast<uint64_t>(value);
}

LimitValues readLimits(const v1::Limits& in) {
  LimitValues out;
  if (in.has_memory_bytes()) out.memoryBytes = positive(in.memory_bytes(), "memoryBytes");
  if (in.has_pids()) out.pids = positive(in.pids(), "pids", UINT32_MAX);
  if (in.has_cpu_millis()) out.cpuMillis = positive(in.cpu_millis(), "cpuMillis", UINT32_MAX);
  if (in.has_cpu_time_ms()) out.cpuTimeMs = positive(in.cpu_time_ms(), "cpuTimeMs");
  if (in.has_wall_ms()) out.wallMs = positive(in.wall_ms(), "wallMs");
  if (in.has_file_size_bytes()) {
    out.fileSizeBytes = positive(in.file_size_bytes(), "fileSizeBytes");
  }
  if (in.has_files()) out.files = positive(in.files(), "files", UINT32_MAX);
  if (in.has_disk_bytes()) out.diskBytes = positive(in.disk_bytes(), "diskBytes");
  if (in.has_tmp_bytes()) out.tmpBytes = positive(in.tmp_bytes(), "tmpBytes");
  if (in.has_shm_bytes()) out.shmBytes = positive(in.shm_bytes(), "shmBytes");
  if (in.has_output_bytes()) out.outputBytes = positive(in.output_bytes(), "outputBytes");
  if (in.has_root_bytes()) out.rootBytes = positive(in.root_bytes(), "rootBytes");
  return out;
}

void requirePlainName(const std::string& text, const char* field) {
  if (text.size() > kLongestName) {
    refuse("BAD_NAME", field, std::string(field) + " is too long", kLongestName);
  }
  for (char c : text) {
    if (c <= ' ' || c >= 0x7f) {
      refuse("BAD_NAME", field, std::string(field) + " holds a character that no name has");
    }
  }
}

// argv or env: count and each string. Adds up what the kernel will count.
void requireStrings(const google::protobuf::RepeatedPtrField<std::string>& strings, size_t room,
                    const char* field, const char* reason, size_t& total) {
  if (static_cast<size_t>(strings.size()) + room > guest::MAX_STRINGS) {
    refuse(std::string(reason) + "_TOO_MANY", field, std::string(field) + " has too many elements",
           guest::MAX_STRINGS - room);
  }
  for (const auto& text : strings) {
    if (text.size() > guest::MAX_STRING_BYTES) {
      refuse(std::string(reason) + "_TOO_LONG", field,
             "an element of " + std::string(field) + " is too long", guest::MAX_STRING_BYTES);
    }
    if (hasNul(text)) {
      refuse(std::string(reason) + "_NUL", field,
             "an element of " + std::string(field) + " holds a NUL byte");
    }
    total += text.size() + 1;
  }
}

bool isNumber(std::string_view text) {
  if (text.empty() || text.size() > 10) return false;
  uint64_t value = 0;
  for (char c : text) {
    if (c < '0' || c > '9') return false;
    value = value * 10 + static_cast<uint64_t>(c - '0');
  }
  return value <= kLargestUid;
}

bool isUserName(std::string_view text) {
  auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  if (text.empty() || text.size() > kLongestUser || !letter(text[0])) return false;
  return std::all_of(text.begin(), text.end(), [&](char c) {
    return letter(c) || (c >= '0' && c <= '9') || c == '-' || c == '.';
  });
}

// "", NAME, UID or UID:GID.
bool isUser(std::string_view text) {
  if (text.empty() || isUserName(text) || isNumber(text)) return true;
  auto colon = text.find(':');
  return colon != std::string_view::npos && isNumber(text.substr(0, colon)) &&
         isNumber(text.substr(colon + 1));
}

bool has(const std::vector<std::string>& env, std::string_view key) {
  return std::any_of(env.begin(), env.end(), [&](const std::string& entry) {
    return entry.size() > key.size() && entry[key.size()] == '=' && entry.starts_with(key);
  });
}

}  // namespace

LimitValues fromRpc(rpc::Limits::Reader in) {
  return {in.getMemoryBytes(), in.getPids(),          in.getCpuMillis(),   in.getCpuTimeMs(),
          in.getWallMs(),      in.getFileSizeBytes(), in.getFiles(),       in.getDiskBytes(),
          in.getTmpBytes(),    in.getShmBytes(),      in.getOutputBytes(), in.getRootBytes()};
}

void toRpc(const LimitValues& in, rpc::Limits::Builder out) {
  out.setMemoryBytes(in.memoryBytes);
  out.setPids(static_cast<uint32_t>(in.pids));
  out.setCpuMillis(static_cast<uint32_t>(in.cpuMillis));
  out.setCpuTimeMs(in.cpuTimeMs);
  out.setWallMs(in.wallMs);
  out.setFileSizeBytes(in.fileSizeBytes);
  out.setFiles(static_cast<uint32_t>(in.files));
  out.setDiskBytes(in.diskBytes);
  out.setTmpBytes(in.tmpBytes);
  out.setShmBytes(in.shmBytes);
  out.setOutputBytes(in.outputBytes);
  out.setRootBytes(in.rootBytes);
}

void fillSpec(const SandboxPlan& plan, rpc::SandboxSpec::Builder out) {
  out.setRuntime(plan.runtime);
  out.setImage(plan.image);
  out.setHostname(plan.hostname);
  out.setSeccomp(plan.seccomp);
  out.setExplain(plan.explain);
  out.setSnapshot(plan.snapshot);
  out.setTtlMs(plan.ttlMs);
  out.setIdleMs(plan.idleMs);
  toRpc(plan.limits, out.initLimits());
}

SandboxId parseId(const std::string& id) {
  if (!isId(id, "sb-")) refuse("BAD_ID", "id", "the id is not NAME.TOKEN as Acquire returned it");
  return {id.substr(0, kNameLength), id.substr(kNameLength + 1)};
}

SandboxId parseSnapshotId(const std::string& id, const char* field) {
  if (!isId(id, "sn-")) {
    refuse("BAD_ID", field, "the id is not NAME.TOKEN as Snapshot returned it");
  }
  return {id.substr(0, kNameLength), id.substr(kNameLength + 1)};
}

PagePlan planPage(const v1::ListRequest& request) {
  constexpr int32_t kDefault = 100, kMost = 500;
  if (request.page_size() < 0 || request.page_size() > kMost) {
    refuse("BAD_PAGE_SIZE", "page_size", "a page has 1 to 500 sandboxes", kMost);
  }
  const auto& token = request.page_token();
  bool good = token.empty() || (token.size() == kNameLength && token.starts_with("sb-"));
  for (size_t i = 3; good && i < token.size(); ++i) good = isLowerOrDigit(token[i], '2', '7');
  if (!good) refuse("BAD_PAGE_TOKEN", "page_token", "not a token that List returned");
  return {token, static_cast<uint32_t>(request.page_size() == 0 ? kDefault : request.page_size())};
}

SandboxPlan planSandbox(const v1::SandboxSpec& spec) {
  SandboxPlan plan;
  requirePlainName(spec.runtime(), "runtime");
  requirePlainName(spec.image(), "image");
  requirePlainName(spec.hostname(), "hostname");
  requirePlainName(spec.seccomp(), "seccomp");
  plan.runtime = spec.runtime();
  plan.image = spec.image();
  plan.hostname = spec.hostname();
  plan.seccomp = spec.seccomp();
  plan.explain = spec.explain();
  if (!spec.snapshot().empty()) {
    parseSnapshotId(spec.snapshot(), "snapshot");
    plan.snapshot = spec.snapshot();
  }
  plan.limits = readLimits(spec.limits());
  if (spec.has_ttl_ms()) plan.ttlMs = positive(spec.ttl_ms(), "ttlMs");
  if (spec.has_idle_ms()) plan.idleMs = positive(spec.idle_ms(), "idleMs");
  return plan;
}

ExecPlan planExec(const v1::ExecSpec& spec) {
  ExecPlan plan;
  size_t total = 0;
  if (spec.argv().empty()) refuse("ARGV_EMPTY", "argv", "argv has no element");
  requireStrings(spec.argv(), 0, "argv", "ARGV", total);
  if (spec.argv(0).empty()) refuse("ARGV_EMPTY", "argv", "argv[0] is empty");
  requireStrings(spec.env(), kRoomForDefaults, "env", "ENV", total);
  for (const auto& entry : spec.env()) {
    auto equals = entry.find('=');
    if (equals == std::string::npos || equals == 0) {
      refuse("ENV_MALFORMED", "env", "an element of env is not KEY=VALUE");
    }
  }
  if (spec.cwd().size() > kLongestPath) {
    refuse("CWD_TOO_LONG", "cwd", "cwd is too long", kLongestPath);
  }
  if (hasNul(spec.cwd())) refuse("CWD_NUL", "cwd", "cwd holds a NUL byte");
  if (!isUser(spec.user())) {
    refuse("BAD_USER", "user", "user is not NAME, UID or UID:GID");
  }
  plan.argv.assign(spec.argv().begin(), spec.argv().end());
  plan.env.assign(spec.env().begin(), spec.env().end());
  plan.cwd = spec.cwd();
  plan.user = spec.user();
  plan.withStdin = spec.stdin();
  plan.explain = spec.explain();

  for (const auto& entry : environment(plan, false)) total += entry.size() + 1;
  for (const auto& entry : plan.env) total -= entry.size() + 1;  // counted above
  if (total > guest::MAX_ARG_ENV_BYTES) {
    refuse("ARGS_TOO_LARGE", "argv", "argv and env together are too large",
           guest::MAX_ARG_ENV_BYTES);
  }

  plan.limits = readLimits(spec.limits());
  const struct {
    uint64_t value;
    const char* field;
  } notPerExec[] = {
      {plan.limits.memoryBytes, "memoryBytes"}, {plan.limits.pids, "pids"},
      {plan.limits.cpuMillis, "cpuMillis"},     {plan.limits.diskBytes, "diskBytes"},
      {plan.limits.tmpBytes, "tmpBytes"},       {plan.limits.shmBytes, "shmBytes"},
      {plan.limits.rootBytes, "rootBytes"},
  };
  for (const auto& limit : notPerExec) {
    if (limit.value != 0) {
      refuse("LIMIT_NOT_PER_EXEC", limit.field,
             std::string(limit.field) + " is a limit of the sandbox, not of one exec");
    }
  }
  return plan;
}

void requireNarrower(const LimitValues& exec, const LimitValues& sandbox) {
  const struct {
    uint64_t exec, sandbox;
    const char* field;
  } pairs[] = {
      {exec.cpuTimeMs, sandbox.cpuTimeMs, "cpuTimeMs"},
      {exec.wallMs, sandbox.wallMs, "wallMs"},
      {exec.fileSizeBytes, sandbox.fileSizeBytes, "fileSizeBytes"},
      {exec.files, sandbox.files, "files"},
      {exec.outputBytes, sandbox.outputBytes, "outputBytes"},
  };
  for (const auto& pair : pairs) {
    if (pair.sandbox != 0 && pair.exec > pair.sandbox) {
      refuse("EXEC_LIMIT_TOO_WIDE", pair.field,
             std::string(pair.field) + " is wider than the sandbox's", pair.sandbox);
    }
  }
}

std::vector<std::string> environment(const ExecPlan& plan, bool hostRuntime) {
  auto env = plan.env;
  auto add = [&](const char* key, const std::string& value) {
    if (!has(plan.env, key)) env.push_back(std::string(key) + "=" + value);
  };
  add("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
  add("LANG", "C.UTF-8");
  if (!hostRuntime) {
    add("HOME", "/work");
    if (plan.user.empty()) add("USER", "user");
    if (isUserName(plan.user)) add("USER", plan.user);
  } else if (plan.cwd.starts_with('/')) {
    add("HOME", plan.cwd);
  }
  return env;
}

}  // namespace cordon::agents
