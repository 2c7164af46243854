#include "broker/main/recovery.h"

#include <dirent.h>
#include <fcntl.h>
#include <kj/debug.h>
#include <kj/io.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "broker/main/identity.h"

// glibc 2.36 forgot the guard.
extern "C" {
#include <sys/pidfd.h>
}

namespace cordon::broker {

namespace {
using Dir = std::unique_ptr<DIR, int (*)(DIR*)>;
constexpr int kNamespacePasses = 100;

std::string readText(const std::string& path) {
  int opened = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (opened < 0) return "";
  kj::AutoCloseFd fd(opened);
  std::string text;
  char buffer[16384];
  for (;;) {
    ssize_t n = read(fd.get(), buffer, sizeof(buffer));
    if (n <= 0) return text;
    text.append(buffer, static_cast<size_t>(n));
  }
}

std::string linkTarget(const std::string& path) {
  char text[256];
  ssize_t n = readlink(path.c_str(), text, sizeof(text));
  return n <= 0 ? "" : std::string(text, static_cast<size_t>(n));
}

// Host root in a mount namespace of its own that has our mount point mounted:
// an earlier broker's. (A user's own namespace may have a mount of that name,
// but its owner isn't uid 0 of the host.)
bool inEarlierNamespace(const std::string& proc, const std::string& own,
                        const std::string& mountPoint) {
  struct stat st;
  if (stat(proc.c_str(), &st) < 0 || st.st_uid != 0) return false;
  std::string ns = linkTarget(proc + "/ns/mnt");
  if (ns.empty() || ns == own) return false;
  return readText(proc + "/mountinfo").find(" " + mountPoint + " ") != std::string::npos;
}

size_t killPassNamespace(const std::string& own, const std::string& mountPoint) {
  Dir dir(opendir("/proc"), closedir);
  KJ_REQUIRE(dir != nullptr, "no /proc");
  size_t killed = 0;
  while (dirent* entry = readdir(dir.get())) {
    char* end;
    long pid = strtol(entry->d_name, &end, 10);
    if (*end != 0 || pid <= 0 || pid == getpid()) continue;
    std::string proc = std::string("/proc/") + entry->d_name;
    if (!inEarlierNamespace(proc, own, mountPoint)) continue;
    int opened = pidfd_open(static_cast<pid_t>(pid), 0);
    if (opened < 0) continue;
    kj::AutoCloseFd pidfd(opened);
    // The number may have been given to another process meanwhile.
    if (!inEarlierNamespace(proc, own, mountPoint)) continue;
    if (pidfd_send_signal(pidfd.get(), SIGKILL, nullptr, 0) == 0) ++killed;
  }
  return killed;
}

std::vector<std::string> directoriesIn(const std::string& path) {
  std::vector<std::string> result;
  Dir dir(opendir(path.c_str()), closedir);
  if (!dir) return result;
  while (dirent* entry = readdir(dir.get())) {
    if (isSandboxName(entry->d_name)) result.emplace_back(entry->d_name);
  }
  return result;
}

kj::Own<Sandbox> remains(Services& services, const SandboxRecord& entry, bool recorded) {
  auto sandbox = kj::refcounted<Sandbox>(services.timer.now());
  sandbox->entry = entry;
  sandbox->entry.state = rpc::SandboxState::DESTROYING;
  // Ours, whatever the record says.
  sandbox->entry.directory = services.sandboxesDirectory + "/" + entry.name;
  sandbox->recorded = recorded;
  sandbox->runtime = services.runtimes.find(entry.runtime);
  sandbox->runtimeUsed = true;
  struct stat st;
  sandbox->directoryMade = lstat(sandbox->entry.directory.c_str(), &st) == 0;
  if (services.cgroups.mode() != CgroupMode::kNone) {
    sandbox->cgroups = services.cgroups.adopt(entry.name, entry.cgroup);
  }
  return sandbox;
}
}  // namespace

size_t killEarlierNamespace(const std::string& mountPoint) {
  std::string own = linkTarget("/proc/self/ns/mnt");
  size_t killed = 0;
  for (int pass = 0; pass < kNamespacePasses; ++pass) {
    size_t found = killPassNamespace(own, mountPoint);
    if (found == 0) return killed;
    killed += found;
    timespec pause{0, 10'000'000};
    nanosleep(&pause, nullptr);
  }
  spdlog::error("processes of an earlier broker do not die");
  return killed;
}

kj::Promise<void> recover(Services& services, Registry& registry, Destruction& destruction) {
  std::map<std::string, kj::Own<Sandbox>> found;
  for (auto& finding : services.ledger.findings()) {
    SandboxRecord entry;
    entry.name = finding.name;
    KJ_IF_MAYBE (record, finding.record) {
      spdlog::warn("{}: left by an earlier broker", finding.name);
      entry = *record;
    } else {
      spdlog::warn("{}: left by an earlier broker, its record is damaged: {}", finding.name,
                   finding.damage);
    }
    found[finding.name] = remains(services, entry, true);
  }
  std::vector<std::string> unrecorded = directoriesIn(services.sandboxesDirectory);
  if (services.cgroups.mode() != CgroupMode::kNone) {
    for (auto& name : services.cgroups.names()) unrecorded.push_back(name);
  }
  for (auto& name : unrecorded) {
    if (found.count(name) > 0) continue;
    spdlog::warn("{}: left by an earlier broker, without a record", name);
    SandboxRecord entry;
    entry.name = name;
    found[name] = remains(services, entry, false);
  }
  for (auto& [name, sandbox] : found) registry.insert(kj::mv(sandbox));
  return destruction.destroyAll("left by an earlier broker");
}

}  // namespace cordon::broker
