// Any bytes as a jailer's spec: refused, or every field in its range.
#include <capnp/message.h>
#include <capnp/serialize.h>
#include <kj/debug.h>
#include <kj/exception.h>

#include <cstring>
#include <string>

#include "jailer/spec.h"
#include "tests/fuzz/fuzz.h"

using namespace cordon::jailer;

namespace {

void mustHold(bool condition) {
  if (!condition) __builtin_trap();
}

bool hasNone(kj::StringPtr text, const char* bad) {
  return strcspn(text.cStr(), bad) == text.size();  // a NUL inside ends it sooner
}

// Beneath wherever it is resolved: "a..b" is a name like any other.
void mustStayBeneath(kj::StringPtr where) {
  mustHold(where.size() > 0 && where.size() <= 1024 && hasNone(where, ""));
  std::string framed = "/" + std::string(where.begin(), where.size()) + "/";
  for (const char* part : {"//", "/./", "/../"}) {
    mustHold(framed.find(part) == std::string::npos);
  }
}

void mustBeGood(Mount::Reader mount) {
  mustStayBeneath(mount.getWhere());
  // What is masked is named by the image.
  if (mount.getKind() != MountKind::MASK) mustHold(hasNone(mount.getWhere(), " \n\t,=\\"));
  mustHold(mount.getKind() <= MountKind::LINK);
  mustHold(mount.getOptions().size() <= 8);
  for (auto option : mount.getOptions()) {
    // None brings another with it.
    mustHold(option.getKey().size() > 0 && hasNone(option.getKey(), ",=/ \n"));
    mustHold(hasNone(option.getValue(), ",=/ \n"));
  }
  bool link = mount.getKind() == MountKind::LINK;
  mustHold(link == (mount.getTarget().size() > 0));
  mustHold(hasNone(mount.getTarget(), " \n"));
  if (mount.getKind() == MountKind::DEVICE) mustHold(mount.getWhere().startsWith("dev/"));
}

void mustBeGood(ImageMount::Reader mount, bool root) {
  mustHold(root == (mount.getWhere().size() == 0));
  if (!root) mustStayBeneath(mount.getWhere());
  mustHold(mount.getOwners() <= Owners::MUST_BE_OWN);
}

// Every field, each with what the steps rely on.
void mustBeGood(JailSpec::Reader spec) {
  mustHold(spec.getVersion() == SPEC_VERSION);
  mustHold(spec.getHostname().size() > 0 && spec.getHostname().size() <= 64);
  mustHold(hasNone(spec.getHostname(), "/ \n"));
  mustHold(spec.getIdCount() == 65536 && spec.getIdFirst() >= 65536);
  mustHold(uint64_t{spec.getIdFirst()} + spec.getIdCount() <= UINT32_MAX);
  mustHold(spec.getAgentUid() > 0 && spec.getAgentUid() < spec.getIdCount());
  mustHold(spec.getAgentGid() > 0 && spec.getAgentGid() < spec.getIdCount());
  mustHold(spec.getFiles() >= 64 && spec.getFiles() <= 1 << 20);
  mustHold(spec.getCgroups() <= CgroupEntry::BORN_INSIDE);
  mustHold(spec.getCgroupFds() >= 1 && spec.getCgroupFds() <= 8);
  mustHold(spec.getMounts().size() <= MAX_MOUNTS);
  for (auto mount : spec.getMounts()) mustBeGood(mount);
  mustHold(spec.getImage().size() <= MAX_IMAGE_MOUNTS);
  bool root = true;
  for (auto mount : spec.getImage()) {
    mustBeGood(mount, root);
    root = false;
  }
  mustHold((spec.getRootBytes() == 0) == (spec.getRootInodes() == 0));
  mustHold(spec.getProgram() <= Program::RESTORER);
  mustHold(spec.getExtraFds() <= 8);
  bool agent = spec.getProgram() == Program::AGENT;
  // vm-agent gets nothing besides, and a copier has no layers of its own.
  mustHold(!agent || spec.getExtraFds() == 0);
  mustHold(agent || (!spec.getLayersWritable() && spec.getRootBytes() == 0));
  mustHold(spec.getFileBytes() == 0 || spec.getProgram() == Program::SAVER);
}

}  // namespace

// As readSpec(): what is checked is read again and again by the steps, and must
// not meet the limit of what may be read on the way, where nobody catches.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto words = kj::heapArray<capnp::word>(size / sizeof(capnp::word));
  memcpy(words.begin(), data, words.asBytes().size());
  capnp::ReaderOptions options;
  options.traversalLimitInWords = 8 * MAX_SPEC_BYTES / sizeof(capnp::word);
  options.nestingLimit = 8;
  kj::Maybe<kj::Own<capnp::FlatArrayMessageReader>> message;
  bool accepted = false;
  auto broken = kj::runCatchingExceptions([&] {
    auto& reader = *message.emplace(kj::heap<capnp::FlatArrayMessageReader>(words, options));
    accepted = whatIsWrong(reader.getRoot<JailSpec>()) == nullptr;
  });
  if (broken != nullptr || !accepted) return 0;
  auto spec = KJ_ASSERT_NONNULL(message)->getRoot<JailSpec>();
  for (int again = 0; again < 2; ++again) mustBeGood(spec);
  return 0;
}

namespace {

std::string specOf(Program program) {
  capnp::MallocMessageBuilder message;
  auto spec = message.initRoot<JailSpec>();
  spec.setVersion(SPEC_VERSION);
  spec.setHostname("sb-fuzz");
  spec.setIdFirst(1879048192);
  spec.setIdCount(65536);
  spec.setAgentUid(65000);
  spec.setAgentGid(65000);
  spec.setFiles(4096);
  spec.setCgroupFds(4);
  auto image = spec.initImage(2);
  image[0].setDirectory(true);
  image[1].setWhere("usr");
  image[1].setOwners(Owners::OWN);
  spec.setProgram(program);
  if (program == Program::AGENT) {
    spec.setRootBytes(1 << 20);
    spec.setRootInodes(256);
    spec.setLayersWritable(true);
  } else {
    spec.setExtraFds(7);
  }
  if (program == Program::SAVER) spec.setFileBytes(1 << 20);
  auto mounts = spec.initMounts(4);
  mounts[0].setWhere("proc");
  mounts[1].setKind(MountKind::DEVICE);
  mounts[1].setWhere("dev/null");
  mounts[2].setKind(MountKind::TMPFS);
  mounts[2].setWhere("work");
  mounts[3].setKind(MountKind::LINK);
  mounts[3].setWhere("dev/fd");
  mounts[3].setTarget("/proc/self/fd");
  auto option = mounts[2].initOptions(1)[0];
  option.setKey("size");
  option.setValue("65536");
  auto words = capnp::messageToFlatArray(message);
  auto bytes = words.asBytes();
  return {reinterpret_cast<const char*>(bytes.begin()), bytes.size()};
}

}  // namespace

std::vector<std::string> cordon::fuzz::corpus() {
  return {specOf(Program::AGENT), specOf(Program::SAVER), specOf(Program::RESTORER)};
}

void cordon::fuzz::repair(std::string& input) {
  input.resize(input.size() / 8 * 8);
}
