#include "broker/main/options.h"

#include <getopt.h>
#include <kj/debug.h>
#include <stdlib.h>
#include <unistd.h>

#include <charconv>
#include <string_view>

namespace cordon::broker {

namespace {
constexpr uint64_t kMostBytes = uint64_t{1} << 50;
constexpr uint32_t kServiceUidOffset = 1;  // in range 0: the agents frontend

template <typename T>
T number(std::string_view text, const char* option, T least, T most) {
  T value{};
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  bool whole = error == std::errc() && end == text.data() + text.size();
  KJ_REQUIRE(whole && value >= least && value <= most, "not a number in range", option,
             std::string(text).c_str(), least, most);
  return value;
}

std::string absolute(const char* path, const char* option) {
  char* real = realpath(path, nullptr);
  if (real == nullptr) KJ_FAIL_SYSCALL("realpath", errno, option, path);
  std::string result(real);
  free(real);
  return result;
}

// Not resolved: a runtime that is missing is the probe's matter, not a reason
// not to start.
std::string absoluteAsGiven(const char* path, const char* option) {
  KJ_REQUIRE(path[0] == '/', "must be an absolute path", option, path);
  return path;
}

std::string besideThisProgram(const char* name) {
  char self[4096];
  ssize_t length;
  KJ_SYSCALL(length = readlink("/proc/self/exe", self, sizeof(self) - 1));
  std::string path(self, static_cast<size_t>(length));
  return path.substr(0, path.rfind('/') + 1) + name;
}

enum Option : int {
  kState = 256,
  kAgentsUid,
  kImages,
  kAllowHost,
  kDefaultRuntimeName,
  kRunc,
  kRuncTimeout,
  kVmAgent,
  kIdSpan,
  kIdRegistry,
  kCgroupBase,
  kMaxSandboxes,
  kMaxPerOwner,
  kSnapshots,
  kMaxSnapshots,
  kMaxSnapshotsPerOwner,
  kSnapshotBytes,
  kSnapshotBytesPerOwner,
  kHelp
};
const option kOptions[] = {
    {"state", required_argument, nullptr, kState},
    {"agents-uid", required_argument, nullptr, kAgentsUid},
    {"images", required_argument, nullptr, kImages},
    {"allow-host-runtime", no_argument, nullptr, kAllowHost},
    {"default-runtime", required_argument, nullptr, kDefaultRuntimeName},
    {"runc", required_argument, nullptr, kRunc},
    {"runc-timeout", required_argument, nullptr, kRuncTimeout},
    {"vm-agent", required_argument, nullptr, kVmAgent},
    {"id-span", required_argument, nullptr, kIdSpan},
    {"id-registry", required_argument, nullptr, kIdRegistry},
    {"cgroup-base", required_argument, nullptr, kCgroupBase},
    {"max-sandboxes", required_argument, nullptr, kMaxSandboxes},
    {"max-per-owner", required_argument, nullptr, kMaxPerOwner},
    {"snapshots", required_argument, nullptr, kSnapshots},
    {"max-snapshots", required_argument, nullptr, kMaxSnapshots},
    {"max-snapshots-per-owner", required_argument, nullptr, kMaxSnapshotsPerOwner},
    {"snapshot-bytes", required_argument, nullptr, kSnapshotBytes},
    {"snapshot-bytes-per-owner", required_argument, nullptr, kSnapshotBytesPerOwner},
    {"help", no_argument, nullptr, kHelp},
    {nullptr, 0, nullptr, 0}};

void apply(int option, const char* value, Options& options) {
  switch (option) {
    case kState:
      options.state = absoluteAsGiven(value, "--state");
      return;
    case kAgentsUid:
      options.agentsUid = number<uid_t>(value, "--agents-uid", 0, 0xfffffffe);
      return;
    case kImages:
      options.imageDirs.push_back(absolute(value, "--images"));
      return;
    case kAllowHost:
      options.allowHostRuntime = true;
      return;
    case kDefaultRuntimeName:
      options.defaultRuntime = value;
      // Whoever doesn't say where to run something has not asked for no sandbox.
      KJ_REQUIRE(options.defaultRuntime != "host", "--default-runtime can't be `host`");
      return;
    case kRunc:
      options.runc = absoluteAsGiven(value, "--runc");
      return;
    case kRuncTimeout:
      options.runcSeconds = number<uint32_t>(value, "--runc-timeout", 1, 600);
      return;
    case kVmAgent:
      options.vmAgent = absolute(value, "--vm-agent");
      return;
    case kIdSpan:
      KJ_IF_MAYBE (span, parseIdSpan(value)) {
        options.ids = *span;
        return;
      }
      KJ_FAIL_REQUIRE("--id-span is FIRST:RANGES, both plain numbers, FIRST a multiple of 65536",
                      value);
    case kIdRegistry:
      options.idRegistry = absoluteAsGiven(value, "--id-registry");
      return;
    case kCgroupBase:
      options.cgroupBase = absoluteAsGiven(value, "--cgroup-base");
      KJ_REQUIRE(
          options.cgroupBase.size() > 1 && options.cgroupBase.find("..") == std::string::npos,
          "--cgroup-base must be a subtree of its own", value);
      return;
    case kMaxSandboxes:
      options.maxSandboxes = number<uint32_t>(value, "--max-sandboxes", 1, 65536);
      return;
    case kMaxPerOwner:
      options.maxSandboxesPerOwner = number<uint32_t>(value, "--max-per-owner", 1, 65536);
      return;
    case kSnapshots:
      options.snapshots = absoluteAsGiven(value, "--snapshots");
      return;
    case kMaxSnapshots:
      options.snapshotCaps.count = number<uint32_t>(value, "--max-snapshots", 0, 65536);
      return;
    case kMaxSnapshotsPerOwner:
      options.snapshotCaps.countPerOwner =
          number<uint32_t>(value, "--max-snapshots-per-owner", 0, 65536);
      return;
    case kSnapshotBytes:
      options.snapshotCaps.bytes = number<uint64_t>(value, "--snapshot-bytes", 0, kMostBytes);
      return;
    case kSnapshotBytesPerOwner:
      options.snapshotCaps.bytesPerOwner =
          number<uint64_t>(value, "--snapshot-bytes-per-owner", 0, kMostBytes);
      return;
    case kHelp:
      options.help = true;
      return;
    default:
      KJ_FAIL_REQUIRE("unknown option or missing value; see --help");
  }
}
}  // namespace

const char* usage() {
  return R"(cordon-broker: creates and destroys sandboxes for cordon's frontends.

It is started by `cordon up` or by systemd with its listening socket (LISTEN_FDS,
name "broker"), e.g.
  systemd-socket-activate -l /run/cordon/broker.sock --fdname=broker \
    cordon-broker --state /run/cordon/broker

  --state DIR             records and locks live below it (required, absolute)
  --agents-uid UID        the uid of cordon-agents (default: 1 above the first id
                          of the span as root, else one's own)
  --images DIR            directories below DIR may be images; repeatable
  --allow-host-runtime    offer `host`, which is no sandbox
  --default-runtime NAME  of a sandbox that names none (default jail; never host)
  --runc PATH             the runc to use
  --runc-timeout SECONDS  how long it may take to start a sandbox (default 20)
  --vm-agent PATH         default: beside this program
  --id-span FIRST:RANGES  ranges of 65536 ids for sandboxes, the first for
                          services (default 1879048192:1024)
  --id-registry DIR       claims on id ranges, shared by the host's instances
  --cgroup-base PATH      cordon's subtree in every hierarchy (default /cordon)
  --max-sandboxes N       at once (default 256)
  --max-per-owner N       at once for one client uid (default 128)
  --snapshots DIR         where snapshots are kept, root's alone (default below
                          the state directory)
  --max-snapshots N       kept in all (default 64)
  --max-snapshots-per-owner N
                          of one client uid (default 16)
  --snapshot-bytes N      of all of them on the disk (default 8 GiB)
  --snapshot-bytes-per-owner N
                          of one client uid's (default 2 GiB)
)";
}

Options parseOptions(int argc, char** argv) {
  Options options;
  bool root = geteuid() == 0;
  options.agentsUid = static_cast<uid_t>(-1);
  optind = 1;
  opterr = 0;
  for (;;) {
    int option = getopt_long(argc, argv, "", kOptions, nullptr);
    if (option < 0) break;
    apply(option, optarg, options);
  }
  if (options.help) return options;
  KJ_REQUIRE(optind == argc, "unexpected argument; see --help", argv[optind]);
  KJ_REQUIRE(!options.state.empty(), "--state is required");
  if (options.vmAgent.empty()) options.vmAgent = besideThisProgram("vm-agent");
  options.jailer = besideThisProgram("cordon-jailer");
  options.copier = besideThisProgram("cordon-copier");
  if (options.agentsUid == static_cast<uid_t>(-1)) {
    options.agentsUid =
        root && !options.allowHostRuntime ? options.ids.first + kServiceUidOffset : geteuid();
  }
  // Programs of `host` run as the broker's user: whoever may ask for one must be
  // that user already.
  KJ_REQUIRE(!options.allowHostRuntime || options.agentsUid == geteuid(),
             "--allow-host-runtime is for a private instance whose frontend is the same user");
  return options;
}

}  // namespace cordon::broker
