#include "vm_agent/descendants.h"

#include <dirent.h>
#include <kj/common.h>
#include <kj/io.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <string>

#include "vm_agent/proc_file.h"
#include "vm_agent/tracers.h"

namespace cordon::agent {

namespace {

constexpr size_t kMaxVisited = 65536;

// Children belong to the thread that forked them.
std::vector<pid_t> childrenOf(pid_t pid) {
  std::vector<pid_t> children;
  std::string tasks = procPath(pid) + "/task";
  DIR* dir = opendir(tasks.c_str());
  if (dir == nullptr) return children;
  KJ_DEFER(closedir(dir));
  while (dirent* entry = readdir(dir)) {
    if (entry->d_name[0] == '.') continue;
    std::string text = readProcFile(tasks + "/" + entry->d_name + "/children");
    const char* at = text.data();
    const char* end = at + text.size();
    while (at < end) {
      pid_t child = 0;
      auto [stop, error] = std::from_chars(at, end, child);
      if (error != std::errc()) break;
      children.push_back(child);
      at = stop + 1;
    }
  }
  return children;
}

}  // namespace

size_t signalDescendants(int signal, const std::vector<pid_t>& except, bool tracersToo) {
  std::vector<pid_t> queue = {getpid()};
  size_t alive = 0;
  for (size_t i = 0; i < queue.size() && queue.size() < kMaxVisited; ++i) {
    pid_t parent = queue[i];
    for (pid_t child : childrenOf(parent)) {
      if (i == 0 && std::find(except.begin(), except.end(), child) != except.end()) continue;
      auto raw = static_cast<int>(syscall(SYS_pidfd_open, child, 0));
      if (raw < 0) continue;
      kj::AutoCloseFd pidfd(raw);
      // The pid may be another's by now: the pidfd is our child's only if it is
      // (still) a child of the one that listed it.
      ProcStat stat = readProcStat(procPath(child));
      if (stat.parent != parent || stat.dead()) continue;
      ++alive;
      queue.push_back(child);
    }
  }
  if (signal == 0) return alive;
  // Parents first would hide their children from this walk; they are listed
  // already, so any order will do. Verified once more by the same rule.
  for (size_t i = 1; i < queue.size(); ++i) {
    auto raw = static_cast<int>(syscall(SYS_pidfd_open, queue[i], 0));
    if (raw < 0) continue;
    kj::AutoCloseFd pidfd(raw);
    ProcStat stat = readProcStat(procPath(queue[i]));
    bool ours = stat.parent == getpid() ||
                std::find(queue.begin(), queue.end(), stat.parent) != queue.end();
    if (!ours) continue;
    syscall(SYS_pidfd_send_signal, pidfd.get(), signal, nullptr, 0);
    if (tracersToo) killTracers(queue[i]);
  }
  return alive;
}

}  // namespace cordon::agent
