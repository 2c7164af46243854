#include "jailer/spec.h"

#include <capnp/serialize.h>
#include <fcntl.h>
#include <kj/exception.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <string_view>

#include "jailer/steps.h"

namespace cordon::jailer {

namespace {

constexpr uint32_t kIdCount = 65536;
constexpr size_t kMostOptions = 8;
constexpr size_t kLongestName = 1024;  // of a path that an image names

bool onlyOf(std::string_view text, std::string_view extra, size_t longest) {
  if (text.size() > longest) return false;
  for (char c : text) {
    bool word = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (!word && extra.find(c) == std::string_view::npos) return false;
  }
  return true;
}

std::string_view view(capnp::Text::Reader text) {
  return {text.begin(), text.size()};
}

// Without empty parts, "." and "..".
bool isPlainPath(std::string_view path, size_t most) {
  if (path.empty() || path.size() > most || path.find('\0') != path.npos) return false;
  while (true) {
    size_t slash = path.find('/');
    auto part = path.substr(0, slash);
    if (part.empty() || part == "." || part == "..") return false;
    if (slash == std::string_view::npos) return true;
    path.remove_prefix(slash + 1);
  }
}

bool isRelativePath(std::string_view path) {
  return isPlainPath(path, 128) && onlyOf(path, "/._-", 128);
}

bool isDevice(std::string_view path) {
  constexpr std::string_view kDirectory = "dev/";
  if (path.substr(0, kDirectory.size()) != kDirectory) return false;
  path.remove_prefix(kDirectory.size());
  for (const char* name : kDevices) {
    if (path == name) return true;
  }
  return false;
}

bool isGood(Mount::Reader mount) {
  auto where = view(mount.getWhere());
  // What is masked is named by the image.
  bool good =
      mount.getKind() == MountKind::MASK ? isPlainPath(where, kLongestName) : isRelativePath(where);
  if (!good) return false;
  if (mount.getOptions().size() > kMostOptions) return false;
  for (auto option : mount.getOptions()) {
    auto key = view(option.getKey());
    if (key.empty() || !onlyOf(key, "_", 32) || !onlyOf(view(option.getValue()), "_", 32)) {
      return false;
    }
  }
  auto target = view(mount.getTarget());
  switch (mount.getKind()) {
    case MountKind::DEVICE:
      return isDevice(where) && target.empty();
    case MountKind::LINK:
      return !target.empty() && onlyOf(target, "/._-", 128);
    case MountKind::PROC:
    case MountKind::SYSFS:
    case MountKind::TMPFS:
    case MountKind::DEVPTS:
    case MountKind::AGAIN:
    case MountKind::MASK:
      return target.empty();
  }
  return false;  // of a newer schema
}

const char* whatIsWrong(capnp::List<ImageMount>::Reader image) {
  if (image.size() == 0 || image.size() > MAX_IMAGE_MOUNTS) return "image";
  for (uint32_t i = 0; i < image.size(); ++i) {
    auto where = view(image[i].getWhere());
    bool root = i == 0;
    if (root ? !where.empty() || !image[i].getDirectory() : !isPlainPath(where, kLongestName)) {
      return "image mount";
    }
    if (image[i].getOwners() > Owners::MUST_BE_OWN) return "owners";
  }
  return nullptr;
}

const char* whatIsWrongWithProgram(JailSpec::Reader spec) {
  if (spec.getExtraFds() > kMostExtraFds) return "extraFds";
  switch (spec.getProgram()) {
    case Program::AGENT:
      if (spec.getExtraFds() != 0) return "extraFds";
      break;
    case Program::SAVER:
    case Program::RESTORER:
      if (spec.getLayersWritable() || spec.getRootBytes() != 0) return "layers of a copier";
      break;
    default:
      return "program";
  }
  if (spec.getFileBytes() != 0 && spec.getProgram() != Program::SAVER) return "fileBytes";
  return nullptr;
}

}  // namespace

const char* whatIsWrong(JailSpec::Reader spec) {
  if (spec.getVersion() != SPEC_VERSION) return "version";
  auto hostname = view(spec.getHostname());
  if (hostname.empty() || !onlyOf(hostname, "-.", 64)) return "hostname";
  if (spec.getIdCount() != kIdCount) return "idCount";
  if (spec.getIdFirst() < kIdCount || spec.getIdFirst() > UINT32_MAX - kIdCount) return "idFirst";
  for (uint32_t id : {spec.getAgentUid(), spec.getAgentGid()}) {
    if (id == 0 || id >= kIdCount) return "agent's ids";
  }
  if (spec.getFiles() < 64 || spec.getFiles() > (1 << 20)) return "files";
  uint32_t fds = spec.getCgroupFds();
  switch (spec.getCgroups()) {
    case CgroupEntry::JOIN_TASKS:
      if (fds < 1 || fds > kMostCgroupFds) return "cgroupFds";
      break;
    case CgroupEntry::BORN_INSIDE:
      if (fds != 2) return "cgroupFds";
      break;
    default:
      return "cgroups";
  }
  if (const char* wrong = whatIsWrong(spec.getImage())) return wrong;
  if (const char* wrong = whatIsWrongWithProgram(spec)) return wrong;
  bool writable = spec.getRootBytes() != 0;
  if (writable ? spec.getRootInodes() < 16 : spec.getRootInodes() != 0) return "rootInodes";
  if (spec.getMounts().size() > MAX_MOUNTS) return "mounts";
  for (auto mount : spec.getMounts()) {
    if (!isGood(mount)) return "mount";
  }
  return nullptr;
}

JailSpec::Reader readSpec() {
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;
  int seals = require(Step::kSpec, fcntl(kSpecFd, F_GET_SEALS));
  // What is checked here must be what is used later.
  if ((seals & kSeals) != kSeals) fail(Step::kSpec, EPERM);
  struct stat status;
  require(Step::kSpec, fstat(kSpecFd, &status));
  auto size = static_cast<size_t>(status.st_size);
  if (size == 0 || size > MAX_SPEC_BYTES || size % sizeof(capnp::word) != 0) {
    fail(Step::kSpec, EMSGSIZE);
  }
  void* mapped = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, kSpecFd, 0);
  if (mapped == MAP_FAILED) fail(Step::kSpec, -1);

  capnp::ReaderOptions options;
  options.traversalLimitInWords = 8 * MAX_SPEC_BYTES / sizeof(capnp::word);
  options.nestingLimit = 8;
  auto words = kj::arrayPtr(static_cast<const capnp::word*>(mapped), size / sizeof(capnp::word));
  JailSpec::Reader spec;
  auto broken = kj::runCatchingExceptions([&] {
    // To the end of the process, which is short.
    auto* message = new capnp::FlatArrayMessageReader(words, options);
    spec = message->getRoot<JailSpec>();
    if (whatIsWrong(spec) != nullptr) fail(Step::kSpec, EINVAL);
  });
  if (broken != nullptr) fail(Step::kSpec, EBADMSG);
  return spec;
}

}  // namespace cordon::jailer
