#include "runtimes/oci/runc_probe.h"

#include <errno.h>
#include <kj/debug.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "runtimes/host_checks.h"
#include "runtimes/oci/runc_files.h"
#include "runtimes/oci/runc_version.h"

namespace cordon::runtimes {

namespace {

constexpr kj::Duration kVersionTimeout = 10 * kj::SECONDS;

// What root is about to run must be root's alone to write.
kj::Maybe<Probe> checkProgram(const std::string& runc) {
  if (runc.empty())
    return Probe::no("runc is not installed", "apt-get install runc, or --runc PATH");
  struct stat status;
  if (stat(runc.c_str(), &status) != 0) {
    return Probe::no("no runc at " + runc + ": " + strerror(errno),
                     "apt-get install runc, or --runc PATH");
  }
  if (!S_ISREG(status.st_mode) || (status.st_mode & 0111) == 0) {
    return Probe::no(runc + " is not a program", "name one with --runc PATH");
  }
  // It is looked up anew for each sandbox: nobody may put another there.
  std::error_code error;
  auto path = std::filesystem::canonical(runc, error);
  if (error) return Probe::no(runc + ": " + error.message(), "name one with --runc PATH");
  for (;; path = path.parent_path()) {
    bool known = stat(path.c_str(), &status) == 0 && status.st_uid == 0;
    // In a sticky directory nobody moves what is root's.
    bool sticky = S_ISDIR(status.st_mode) && (status.st_mode & S_ISVTX) != 0;
    if (!known || ((status.st_mode & 022) != 0 && !sticky)) {
      return Probe::no(runc + " can be replaced by others than root, at " + path.string(),
                       "chown root:root and chmod go-w, or --runc PATH");
    }
    if (path == path.root_path()) return nullptr;
  }
}

std::string noteOnCores() {
  rlimit core;
  if (getrlimit(RLIMIT_CORE, &core) != 0 || core.rlim_max >= 1) return "";
  if (firstLine("/proc/sys/kernel/core_pattern").substr(0, 1) != "|") return "";
  return "core_pattern is a pipe and the hard RLIMIT_CORE is 0, which it ignores: "
         "a crash inside runs its helper on the host";
}

Probe judge(const std::string& output, const broker::ExitStatus& status) {
  std::optional<RuncVersion> version = parseRuncVersion(output);
  if (status.signaled || status.code != 0 || !version) {
    return Probe::no("runc --version failed", "install a working runc, or --runc PATH");
  }
  Probe probe;
  probe.available = true;
  probe.version = version->text;
  probe.notes = openHoles(*version);
  std::string cores = noteOnCores();
  if (!cores.empty()) probe.notes.push_back(cores);
  return probe;
}

}  // namespace

std::string findRunc() {
  for (const char* path : {"/usr/local/sbin/runc", "/usr/local/bin/runc", "/usr/sbin/runc",
                           "/usr/bin/runc", "/sbin/runc", "/bin/runc"}) {
    if (access(path, X_OK) == 0) return path;
  }
  return "";
}

kj::Promise<Probe> probeRunc(broker::Children& children, kj::Timer& timer,
                             const broker::CgroupTree& cgroups, const std::string& runc) {
  KJ_IF_MAYBE (refused, checkHost(cgroups)) return kj::mv(*refused);
  KJ_IF_MAYBE (refused, checkProgram(runc)) return kj::mv(*refused);

  auto output = kj::heap<kj::AutoCloseFd>(makeOutputFile());
  broker::SpawnSpec spec;
  spec.program = runc;
  spec.argv = {"runc", "--version"};
  spec.env = {"PATH=/usr/sbin:/usr/bin:/sbin:/bin"};
  spec.fds = {{output->get(), 1}, {output->get(), 2}};
  kj::Own<broker::Child> child;
  kj::Maybe<kj::Exception> fault =
      kj::runCatchingExceptions([&]() { child = children.spawn(spec); });
  if (fault != nullptr) {
    return Probe::no("runc can't be executed", "install a working runc, or --runc PATH");
  }

  broker::Child& running = *child;
  auto ended = running.onExit().then(
      [&file = *output](broker::ExitStatus status) { return judge(readOutputFile(file), status); });
  auto timeout = timer.afterDelay(kVersionTimeout).then([&running]() {
    if (running.exited() == nullptr) kill(-running.pid(), SIGKILL);
    return running.onExit().then([](broker::ExitStatus) {
      return Probe::no("runc --version does not answer", "install a working runc, or --runc PATH");
    });
  });
  return ended.exclusiveJoin(kj::mv(timeout)).attach(kj::mv(child), kj::mv(output));
}

}  // namespace cordon::runtimes
