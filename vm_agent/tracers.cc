#include "vm_agent/tracers.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <string>
#include <vector>

#include "vm_agent/proc_file.h"

namespace cordon::agent {

namespace {

constexpr uint64_t kGraceUs = 300 * 1000;
constexpr uint64_t kRetryUs = 100 * 1000;
// A thread that is dead and traced keeps its process from ending without any
// sign of it: from time to time somebody has to look.
constexpr uint64_t kFirstLookUs = 1000 * 1000;
constexpr uint64_t kRareLookUs = 8 * kFirstLookUs;

std::vector<std::string> threadsOf(pid_t pid) {
  std::vector<std::string> threads;
  std::string tasks = procPath(pid) + "/task";
  DIR* dir = opendir(tasks.c_str());
  if (dir == nullptr) return threads;
  KJ_DEFER(closedir(dir));
  while (dirent* entry = readdir(dir)) {
    if (entry->d_name[0] != '.') threads.push_back(tasks + "/" + entry->d_name);
  }
  return threads;
}

// A thread's id, or 0; also 0 for a tracer outside of our pid namespace.
pid_t tracerOf(const std::string& thread) {
  return statusNumber(readProcFile(thread + "/status"), "TracerPid");
}

bool allDead(pid_t pid) {
  if (!readProcStat(procPath(pid)).dead()) return false;  // nearly always
  for (auto& thread : threadsOf(pid)) {
    ProcStat stat = readProcStat(thread);
    if (stat.state != '\0' && !stat.dead()) return false;
  }
  return true;
}

}  // namespace

EndWatch::EndWatch(pid_t child, uint64_t now)
    : child_(child), interval_(kFirstLookUs), nextCheck_(now + kFirstLookUs) {
  auto fd = static_cast<int>(syscall(SYS_pidfd_open, child, 0));
  if (fd >= 0) fd_ = kj::AutoCloseFd(fd);
}

void EndWatch::ended(uint64_t now) {
  seenDead_ = true;
  nextCheck_ = now + kGraceUs;
}

void EndWatch::check(uint64_t now) {
  if (now < nextCheck_) return;
  if (!allDead(child_)) {
    seenDead_ = false;
    interval_ = std::min(2 * interval_, kRareLookUs);
    nextCheck_ = now + interval_;
    return;
  }
  nextCheck_ = now + (seenDead_ ? kRetryUs : kGraceUs);
  if (seenDead_) killTracers(child_);
  seenDead_ = true;
}

void killTracers(pid_t traced) {
  for (auto& thread : threadsOf(traced)) {
    pid_t tracer = tracerOf(thread);
    if (tracer <= 0 || tracer == getpid()) continue;
    // A directory of /proc serves as a pidfd, also that of a thread. It was the
    // tracer's if that is the tracer still.
    int raw = open(procPath(tracer).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (raw < 0) continue;
    kj::AutoCloseFd fd(raw);
    if (tracerOf(thread) == tracer) syscall(SYS_pidfd_send_signal, raw, SIGKILL, nullptr, 0);
  }
}

void detachStopped(pid_t child, int status) {
  // An exec under trace stops with a SIGTRAP that nobody sent.
  int signal = WSTOPSIG(status) == SIGTRAP ? 0 : WSTOPSIG(status);
  ptrace(PTRACE_DETACH, child, nullptr, reinterpret_cast<void*>(static_cast<intptr_t>(signal)));
}

}  // namespace cordon::agent
