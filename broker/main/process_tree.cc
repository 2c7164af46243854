#include "broker/main/process_tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <kj/io.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

// glibc 2.36 forgot the guard.
extern "C" {
#include <sys/pidfd.h>
}

namespace cordon::broker {

namespace {
constexpr int kPasses = 8;

// The parent from /proc/PID/stat, 0 when it is gone or a zombie.
pid_t parentOf(pid_t pid) {
  std::string path = "/proc/" + std::to_string(pid) + "/stat";
  int opened = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (opened < 0) return 0;
  kj::AutoCloseFd fd(opened);
  char text[1024];
  ssize_t length = read(fd.get(), text, sizeof(text) - 1);
  if (length <= 0) return 0;
  text[length] = 0;
  // The name in parentheses may hold anything, also a ')'.
  const char* afterName = strrchr(text, ')');
  if (afterName == nullptr || strlen(afterName) < 4 || afterName[2] == 'Z') return 0;
  return static_cast<pid_t>(strtol(afterName + 4, nullptr, 10));
}

std::map<pid_t, pid_t> parents() {
  std::map<pid_t, pid_t> result;
  std::unique_ptr<DIR, int (*)(DIR*)> dir(opendir("/proc"), closedir);
  if (!dir) return result;
  while (dirent* entry = readdir(dir.get())) {
    char* end;
    long pid = strtol(entry->d_name, &end, 10);
    if (*end != 0 || pid <= 0) continue;
    pid_t parent = parentOf(static_cast<pid_t>(pid));
    if (parent > 0) result[static_cast<pid_t>(pid)] = parent;
  }
  return result;
}

bool descends(pid_t pid, pid_t root, const std::map<pid_t, pid_t>& parents) {
  for (size_t depth = 0; depth <= parents.size(); ++depth) {
    auto it = parents.find(pid);
    if (it == parents.end()) return false;
    if (it->second == root) return true;
    pid = it->second;
  }
  return false;
}

bool killOne(pid_t pid, pid_t parent) {
  int opened = pidfd_open(pid, 0);
  if (opened < 0) return false;
  kj::AutoCloseFd pidfd(opened);
  // The number may have been given to another process meanwhile.
  if (parentOf(pid) != parent) return false;
  return pidfd_send_signal(pidfd.get(), SIGKILL, nullptr, 0) == 0;
}
}  // namespace

size_t killTree(pid_t root) {
  size_t sent = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    auto all = parents();
    size_t found = 0;
    for (auto& [pid, parent] : all) {
      if (!descends(pid, root, all)) continue;
      ++found;
      if (killOne(pid, parent)) ++sent;
    }
    if (found == 0) break;
  }
  return sent;
}

}  // namespace cordon::broker
