#include "runtimes/oci/bundle.h"

#include <algorithm>

#include "broker/cgroups_tree.h"
#include "ipc/agent_ids.h"
#include "runtimes/kernel_paths.h"
#include "runtimes/oci/json_writer.h"

namespace cordon::runtimes {

namespace {

using Strings = std::vector<std::string>;

void writeProcess(JsonWriter& json, const BundleInput& input) {
  // The three that the agent needs to start programs under other uids and to
  // end them; ambient, since it is not root.
  const Strings capabilities = {"CAP_KILL", "CAP_SETGID", "CAP_SETUID"};
  json.key("process").beginObject();
  json.field("terminal", false);
  json.key("user").beginObject();
  json.field("uid", ipc::kAgentUid).field("gid", ipc::kAgentGid).field("additionalGids", Strings{});
  json.endObject();
  json.field("args", Strings{kAgentPath}).field("env", Strings{"PATH=/usr/bin:/bin"});
  json.field("cwd", "/");
  json.key("capabilities").beginObject();
  for (const char* set : {"bounding", "effective", "permitted", "inheritable", "ambient"}) {
    json.field(set, capabilities);
  }
  json.endObject();
  json.field("noNewPrivileges", true);

  uint64_t files = std::min(agentFiles(input.limits.files), input.hardFiles);
  // 1 is the kernel's value for "no dump"; 0 is not honoured by a piped core_pattern.
  uint64_t core = std::min<uint64_t>(1, input.hardCore);
  auto rlimit = [&](const char* type, uint64_t value) {
    json.beginObject();
    json.field("type", type).field("hard", value).field("soft", value);
    json.endObject();
  };
  json.key("rlimits").beginArray();
  rlimit("RLIMIT_NOFILE", files);
  rlimit("RLIMIT_CORE", core);
  json.endArray();
  json.endObject();
}

struct Mounted {
  const char* destination;
  const char* type;
  const char* source;
  Strings options;
  bool isThere = false;  // mounted by us
};

// A sized tmpfs.
Strings scratchOptions(uint64_t bytes, uint32_t uid, uint32_t gid, const Strings& more = {}) {
  Strings options = {"nosuid",
                     "nodev",
                     "mode=1777",
                     "size=" + std::to_string(bytes),
                     "nr_inodes=" + std::to_string(scratchInodes(bytes)),
                     "uid=" + std::to_string(uid),
                     "gid=" + std::to_string(gid)};
  options.insert(options.end(), more.begin(), more.end());
  return options;
}

std::vector<Mounted> mountsOf(const BundleInput& input) {
  auto& limits = input.limits;
  auto& image = *input.image;
  bool isThere = !input.ownRoot.empty();
  return {
      {"/proc", "proc", "proc", {"nosuid", "noexec", "nodev"}},
      {"/sys", "sysfs", "sysfs", {"nosuid", "noexec", "nodev", "ro"}},
      // nodev here does not touch the six devices: each is a bind mount of its own.
      {"/dev",
       "tmpfs",
       "tmpfs",
       {"nosuid", "noexec", "nodev", "ro", "mode=755", "size=65536", "nr_inodes=64"}},
      {"/dev/pts",
       "devpts",
       "devpts",
       {"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "max=64"}},
      {"/dev/shm", "tmpfs", "shm", scratchOptions(limits.shmBytes, 0, 0, {"noexec"})},
      {"/tmp", "tmpfs", "tmp", scratchOptions(limits.tmpBytes, 0, 0), isThere},
      {"/work", "tmpfs", "work",
       scratchOptions(limits.diskBytes, image.defaultUid, image.defaultGid), isThere},
  };
}

void writeMounts(JsonWriter& json, const BundleInput& input) {
  json.key("mounts").beginArray();
  for (auto& mount : mountsOf(input)) {
    if (mount.isThere) continue;
    json.beginObject();
    json.field("destination", mount.destination).field("type", mount.type);
    json.field("source", mount.source).field("options", mount.options);
    json.endObject();
  }
  json.endArray();
}

PlannedMount planned(const Mounted& mount) {
  auto has = [&](const char* option) {
    return std::count(mount.options.begin(), mount.options.end(), option) > 0;
  };
  return {mount.type, mount.destination,
          planFlags(has("ro"), has("nosuid"), has("nodev"), has("noexec"))};
}

void writeIdMappings(JsonWriter& json, const IdRange& ids) {
  for (const char* which : {"uidMappings", "gidMappings"}) {
    json.key(which).beginArray().beginObject();
    json.field("containerID", 0).field("hostID", ids.first).field("size", ids.count);
    json.endObject().endArray();
  }
}

void writeNamespaces(JsonWriter& json, const BundleInput& input) {
  json.key("namespaces").beginArray();
  for (const char* type : {"pid", "network", "ipc", "uts", "mount", "user"}) {
    json.beginObject().field("type", type).endObject();
  }
  json.beginObject().field("type", "cgroup");
  if (!input.cgroupNamespacePath.empty()) json.field("path", input.cgroupNamespacePath);
  json.endObject();
  json.endArray();
}

// The runtime writes these over what the broker has set already, so they are the
// same numbers.
void writeResources(JsonWriter& json, bool cgroupV2) {
  json.key("resources").beginObject();
  json.key("devices").beginArray().beginObject();
  json.field("allow", false).field("access", "rwm");
  json.endObject().endArray();
  json.key("memory").beginObject().field("limit", broker::kAgentMemoryBytes).endObject();
  json.key("pids").beginObject().field("limit", broker::kAgentPids).endObject();
  // Twice the default, so that the agent answers beside a busy workload.
  if (cgroupV2) {
    json.key("unified").beginObject().field("cpu.weight", "200").endObject();
  } else {
    json.key("cpu").beginObject().field("shares", 2048).endObject();
  }
  json.endObject();
}

void writeLinux(JsonWriter& json, const BundleInput& input) {
  json.key("linux").beginObject();
  writeIdMappings(json, input.ids);
  writeNamespaces(json, input);
  json.field("cgroupsPath", input.cgroupsPath);
  writeResources(json, input.cgroupV2);
  json.field("rootfsPropagation", "rprivate");
  json.key("devices").beginArray().endArray();  // the default six alone
  json.field("maskedPaths", maskedPaths(input.cpus));
  json.field("readonlyPaths", readOnlyPaths());
  if (!input.seccomp.empty()) json.key("seccomp").raw(input.seccomp);
  json.endObject();
}

}  // namespace

MountPlan bundleMountPlan(const BundleInput& input) {
  MountPlan plan = imagePlan(*input.image, false);
  for (auto& mount : mountsOf(input)) plan.push_back(planned(mount));
  // What runc adds by itself. Its binds have the flags of their source.
  for (const char* device : {"null", "random", "full", "tty", "zero", "urandom"}) {
    std::string path = std::string("/dev/") + device;
    plan.push_back({"the host's " + path, path, planFlags(false, false, false, false)});
  }
  for (auto& path : readOnlyPaths()) {
    if (lookUp(path) == KernelPath::kAbsent) continue;
    plan.push_back({"the same again", path, planFlags(true, true, true, true)});
  }
  for (auto& path : maskedPaths(input.cpus)) {
    switch (lookUp(path)) {
      case KernelPath::kAbsent:
        break;
      case KernelPath::kFile:
        plan.push_back(
            {"the host's /dev/null, over a file", path, planFlags(false, false, false, false)});
        break;
      case KernelPath::kDirectory:
        plan.push_back(
            {"an empty tmpfs, over a directory", path, planFlags(true, false, false, false)});
        break;
    }
  }
  return plan;
}

std::string bundleConfig(const BundleInput& input) {
  JsonWriter json;
  json.beginObject();
  json.field("ociVersion", "1.0.2");
  writeProcess(json, input);
  json.key("root").beginObject();
  json.field("path", input.ownRoot.empty() ? input.image->rootfs : input.ownRoot);
  json.field("readonly", true);
  json.endObject();
  json.field("hostname", input.hostname);
  writeMounts(json, input);
  writeLinux(json, input);
  json.endObject();
  return json.text();
}

}  // namespace cordon::runtimes
