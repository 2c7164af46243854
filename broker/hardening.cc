#include "broker/hardening.h"

#include <errno.h>
#include <fcntl.h>
#include <kj/debug.h>
#include <kj/io.h>
#include <linux/bpf.h>
#include <linux/keyctl.h>
#include <seccomp.h>
#include <string.h>
#include <sys/capability.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <memory>

#include "broker/cgroups_discovery.h"
#include "jailer/capabilities.h"
#include "jailer/rlimits.h"

namespace cordon::broker {

namespace {

// Found by taking them away one by one from `runc run` and its cleanup. What is
// not here (NET_ADMIN, SETPCAP, SYS_CHROOT, SYS_PTRACE ...) runc has in the
// sandbox's user namespace, whose owner we are, and needs nowhere else.
constexpr Reasoned kKept[] = {
    {"cap_sys_admin", "mounts, namespaces by descriptor, cgroup settings, device filters"},
    {"cap_setuid", "uid map of a sandbox"},
    {"cap_setgid", "gid map of a sandbox"},
    {"cap_chown", "runc's fifo, cgroup.procs and scratch that belong to a sandbox's ids"},
    {"cap_dac_override", "work in directories that belong to a sandbox's ids"},
    {"cap_fowner", "removing what a program left in a sticky directory"},
    {"cap_kill", "killing never fails, whoever a process has become"},
    {"cap_sys_resource", "keeping the hard limits that a sandbox is promised"},
};

constexpr Reasoned kForRuntimes[] = {
    {"cap_net_admin", "runc's look at a cgroup's device filters, before Linux 6.5"},
};

constexpr Reasoned kRefused[] = {
    {"init_module", "code into the kernel"},
    {"finit_module", "code into the kernel"},
    {"delete_module", "code out of the kernel"},
    {"kexec_load", "another kernel"},
    {"kexec_file_load", "another kernel"},
    {"reboot", "the whole host"},
    {"swapon", "storage of the whole host"},
    {"swapoff", "storage of the whole host"},
    {"acct", "a log of every process of the host"},
    {"iopl", "ports of the hardware"},
    {"ioperm", "ports of the hardware"},
    {"open_by_handle_at", "files by inode, past every directory (the shocker exploit)"},
    {"lookup_dcookie", "paths from the kernel's profiler"},
    {"quotactl", "quotas of the host"},
    {"quotactl_fd", "quotas of the host"},
    {"nfsservctl", "a server inside the kernel, long gone"},
    {"settimeofday", "the host's clock"},
    {"stime", "the host's clock"},
    {"clock_settime", "the host's clock"},
    {"clock_settime64", "the host's clock"},
    {"syslog", "the kernel's log"},
    {"vhangup", "the host's terminals"},
    {"uselib", "an old library loader"},
    {"_sysctl", "an old way to the kernel's settings"},
    {"sysfs", "a list of file systems nobody needs"},
    {"ustat", "superseded by statfs"},
    {"fanotify_init", "watching every file of a mount"},
    {"perf_event_open", "counters and samples of the whole host"},
    {"add_key", "keys of root; runc needs keyctl alone"},
    {"request_key", "keys of root; runc needs keyctl alone"},
};

// ------------------------------------------------------------- capabilities

struct CapFree {
  void operator()(void* p) const { cap_free(p); }
};
using Capabilities = std::unique_ptr<std::remove_pointer_t<cap_t>, CapFree>;

Capabilities own(cap_t caps, const char* what) {
  if (caps == nullptr) {
    int error = errno;
    KJ_FAIL_SYSCALL(what, error);
  }
  return Capabilities(caps);
}

bool holds(cap_t caps, cap_value_t capability) {
  cap_flag_value_t value = CAP_CLEAR;
  KJ_SYSCALL(cap_get_flag(caps, capability, CAP_PERMITTED, &value));
  return value == CAP_SET;
}

uint64_t maskOf(const std::vector<cap_value_t>& values) {
  uint64_t mask = 0;
  for (cap_value_t value : values) mask |= jailer::capabilityBit(value);
  return mask;
}

// Those of the list that we hold, and can pass on: the bounding set decides what
// a child of root has after its exec. Their names, and those we lack.
std::vector<cap_value_t> held(cap_t before, kj::ArrayPtr<const Reasoned> list,
                              std::vector<std::string>& names, std::vector<std::string>& missing) {
  std::vector<cap_value_t> result;
  for (auto& entry : list) {
    cap_value_t capability;
    KJ_SYSCALL(cap_from_name(entry.name, &capability), entry.name);
    bool have = holds(before, capability) && cap_get_bound(capability) == 1;
    (have ? names : missing).emplace_back(entry.name);
    if (have) result.push_back(capability);
  }
  return result;
}

void set(cap_t caps, cap_flag_t flag, const std::vector<cap_value_t>& values) {
  KJ_SYSCALL(cap_set_flag(caps, flag, static_cast<int>(values.size()), values.data(), CAP_SET));
}

// The v2 hierarchy that limits sandboxes, or nothing where v1 does.
kj::Maybe<kj::AutoCloseFd> pureV2() {
  kj::Maybe<kj::AutoCloseFd> found;
  for (auto& h : readHierarchies()) {
    if (h.has("memory")) return nullptr;
    if (!h.v2) continue;
    int fd = open(h.mountPoint.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd >= 0) found = kj::AutoCloseFd(fd);
  }
  return found;
}

// Asks the kernel, by looking with these capabilities in effect. From 6.5 on
// CAP_SYS_ADMIN is enough; on v1 nobody looks.
bool deviceFiltersAreRefused(cap_t before, const std::vector<cap_value_t>& effective) {
  KJ_IF_MAYBE (hierarchy, pureV2()) {
    Capabilities asking = own(cap_dup(before), "cap_dup");
    KJ_SYSCALL(cap_clear_flag(asking.get(), CAP_EFFECTIVE));
    set(asking.get(), CAP_EFFECTIVE, effective);
    KJ_SYSCALL(cap_set_proc(asking.get()));
    bpf_attr query{};
    query.query.target_fd = static_cast<uint32_t>(hierarchy->get());
    query.query.attach_type = BPF_CGROUP_DEVICE;
    bool refused = syscall(SYS_bpf, BPF_PROG_QUERY, &query, sizeof(query)) < 0 && errno == EPERM;
    KJ_SYSCALL(cap_set_proc(before));
    return refused;
  }
  return false;
}

void keepOnly(Hardened& result) {
  Capabilities before = own(cap_get_proc(), "cap_get_proc");
  std::vector<cap_value_t> kept =
      held(before.get(), keptCapabilities(), result.capabilities, result.missing);
  jailer::CapabilitySets after;
  after.effective = after.permitted = maskOf(kept);
  // What only a runtime needs is permitted, so that an exec of root has it, and
  // never effective here.
  if (deviceFiltersAreRefused(before.get(), kept)) {
    after.permitted |=
        maskOf(held(before.get(), runtimeCapabilities(), result.forRuntimes, result.missing));
  }
  auto must = [](bool done, const char* what) {
    int error = errno;
    if (!done) KJ_FAIL_SYSCALL(what, error);
  };
  must(jailer::keepInBoundingSet(after.permitted), "bounding set");
  must(jailer::clearAmbient(), "ambient set");
  // The inheritable set stays empty: an exec of root gets its capabilities from
  // the bounding set, and nobody else gets any.
  must(jailer::setCapabilities(after), "capset");
}

// ------------------------------------------------------------------ seccomp

struct SeccompRelease {
  void operator()(void* filter) const { seccomp_release(filter); }
};

void check(int negativeErrno, const char* what, const char* detail = "") {
  if (negativeErrno < 0) KJ_FAIL_SYSCALL(what, -negativeErrno, detail);
}

size_t loadFilter() {
  std::unique_ptr<void, SeccompRelease> filter(seccomp_init(SCMP_ACT_ALLOW));
  KJ_REQUIRE(filter != nullptr, "seccomp_init");
  // The same calls through the other entry points of this processor; without
  // them every 32-bit program of a descendant would be killed.
  if (seccomp_arch_native() == SCMP_ARCH_X86_64) {
    for (uint32_t arch : {SCMP_ARCH_X86, SCMP_ARCH_X32}) {
      check(seccomp_arch_add(filter.get(), arch), "seccomp_arch_add");
    }
  }
  size_t refused = 0;
  for (auto& call : refusedCalls()) {
    int number = seccomp_syscall_resolve_name(call.name);
    if (number == __NR_SCMP_ERROR) continue;  // newer than this libseccomp
    check(seccomp_rule_add(filter.get(), SCMP_ACT_ERRNO(EPERM), number, 0), "seccomp_rule_add",
          call.name);
    ++refused;
  }
  check(seccomp_load(filter.get()), "seccomp_load");
  return refused;
}

// --------------------------------------------------------------- the process

// A core dump of the broker has tokens' hashes and more in it. False: the hard
// limit is lower than the 1 that a sandbox is to be given.
bool limitCore() {
  rlimit limit{};
  KJ_SYSCALL(getrlimit(RLIMIT_CORE, &limit));
  if (limit.rlim_max < 1) return false;
  KJ_REQUIRE(jailer::refuseCores(), "RLIMIT_CORE", strerror(errno));
  return true;
}

// A session keyring of its own, empty: sandboxes would share the caller's.
void leaveKeyring() {
  if (syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, nullptr) >= 0) return;
  int error = errno;
  if (error == ENOSYS || error == EPERM || error == EACCES) return;  // there are no keyrings here
  KJ_FAIL_SYSCALL("keyctl(JOIN_SESSION_KEYRING)", error);
}

}  // namespace

kj::ArrayPtr<const Reasoned> keptCapabilities() {
  return kKept;
}
kj::ArrayPtr<const Reasoned> runtimeCapabilities() {
  return kForRuntimes;
}
kj::ArrayPtr<const Reasoned> refusedCalls() {
  return kRefused;
}

Hardened hardenBroker() {
  Hardened result;
  result.root = geteuid() == 0;
  if (result.root) {
    // Modes of what we make are what we wrote, whatever the caller's umask was.
    umask(022);
    result.coreLimitUsable = limitCore();
    leaveKeyring();
    // ------------------------------------------- from here on less than root
    keepOnly(result);
  }
  // No setuid program gives anything back. Before seccomp, which then needs no
  // capability.
  KJ_SYSCALL(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
  // After the capabilities: changing them makes a process dumpable or not by
  // the kernel's own rule.
  KJ_SYSCALL(prctl(PR_SET_DUMPABLE, 0, 0, 0, 0));
  // Last: nothing above had to be spared for it.
  if (result.root) result.refusedCalls = loadFilter();
  return result;
}

}  // namespace cordon::broker
