#include "vm_agent/request.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace cordon::agent {

namespace {

constexpr size_t kMaxCwd = 4095;

bool contains(capnp::Data::Reader bytes, char wanted) {
  return std::find(bytes.begin(), bytes.end(), static_cast<kj::byte>(wanted)) != bytes.end();
}

// 0, or the errno that refuses the strings. `total` counts across calls.
int checkStrings(capnp::List<capnp::Data>::Reader strings, size_t& total) {
  if (strings.size() > guest::MAX_STRINGS) return E2BIG;
  for (auto bytes : strings) {
    if (bytes.size() > guest::MAX_STRING_BYTES) return E2BIG;
    total += bytes.size() + 1;
    if (total > guest::MAX_ARG_ENV_BYTES) return E2BIG;
    if (contains(bytes, '\0')) return EINVAL;
  }
  return 0;
}

int checkEnvironment(capnp::List<capnp::Data>::Reader env) {
  for (auto bytes : env) {
    if (!contains(bytes, '=') || bytes[0] == '=') return EINVAL;
  }
  return 0;
}

// What is asked, or the ceiling where nothing is; false when it is wider.
bool within(uint64_t asked, uint64_t ceiling, uint64_t& result) {
  result = asked == 0 ? ceiling : asked;
  return ceiling == 0 || result <= ceiling;
}

int checkShape(guest::Start::Reader start) {
  if (start.getArgv().size() == 0) return EINVAL;
  size_t total = 0;
  if (int error = checkStrings(start.getArgv(), total)) return error;
  if (int error = checkStrings(start.getEnv(), total)) return error;
  if (int error = checkEnvironment(start.getEnv())) return error;
  auto cwd = start.getCwd();
  if (cwd.size() > kMaxCwd) return E2BIG;
  if (contains(cwd, '\0')) return EINVAL;
  return 0;
}

UserResult chooseUser(guest::Start::Reader start, const Config& config) {
  auto text = start.getUser();
  std::string_view user(text.begin(), text.size());
  if (config.switchUser) {
    return resolveUser(user, config.defaultUser, config.agentUid, "/etc/passwd");
  }
  // Without the privilege to change it: only the agent's own user will do.
  UserIds own = {getuid(), getgid()};
  if (user.empty()) return {0, own};
  auto named = findInPasswd("/etc/passwd", user, 0);
  bool same = (named && named->uid == own.uid) || user == std::to_string(own.uid);
  return {same ? 0 : EPERM, own};
}

}  // namespace

void StringBlock::add(kj::ArrayPtr<const kj::byte> bytes) {
  offsets_.push_back(text_.size());
  auto* first = reinterpret_cast<const char*>(bytes.begin());
  text_.insert(text_.end(), first, first + bytes.size());
  text_.push_back('\0');
}

char* const* StringBlock::pointers() {
  pointers_.clear();
  pointers_.reserve(offsets_.size() + 1);
  for (size_t offset : offsets_) pointers_.push_back(text_.data() + offset);
  pointers_.push_back(nullptr);
  return pointers_.data();
}

const char* ExecRequest::searchPath() const {
  for (size_t i = 0; i < env.size(); ++i) {
    if (strncmp(env.at(i), "PATH=", 5) == 0) return env.at(i) + 5;
  }
  return "/usr/local/bin:/usr/bin:/bin";
}

RequestResult checkRequest(guest::Start::Reader start, const Config& config) {
  RequestResult result;
  auto& request = result.request;
  request.exec = start.getExec();
  result.error = checkShape(start);
  if (result.error != 0) return result;

  bool narrow = within(start.getFileSizeBytes(), config.fileSizeBytes, request.fileSizeBytes) &&
                within(start.getFiles(), config.files, request.files) &&
                within(start.getCpuTimeMs(), config.cpuTimeMs, request.cpuTimeMs) &&
                within(start.getDeadlineMs(), config.deadlineMs, request.deadlineMs) &&
                within(start.getOutputBytes(), config.outputBytes, request.outputBytes);
  if (!narrow) {
    result.error = EPERM;
    return result;
  }

  request.explain = start.getExplain();
  if (request.explain && config.filter.empty()) {
    result.step = guest::FailStep::SECCOMP;
    result.error = EOPNOTSUPP;
    return result;
  }

  auto user = chooseUser(start, config);
  if (user.error != 0) {
    result.step = guest::FailStep::USER;
    result.error = user.error;
    return result;
  }
  request.user = user.ids;
  for (auto bytes : start.getArgv()) request.argv.add(bytes);
  for (auto bytes : start.getEnv()) request.env.add(bytes);
  auto cwd = start.getCwd();
  request.cwd.assign(reinterpret_cast<const char*>(cwd.begin()), cwd.size());
  request.stdin = start.getStdin();
  return result;
}

}  // namespace cordon::agent
