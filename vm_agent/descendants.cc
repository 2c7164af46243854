#include "vm_agent/descendants.h"

#include <dirent.h>
#include <fcntl.h>
#include <kj/common.h>
#include <kj/io.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string>

namespace cordon::agent {

namespace {

constexpr size_t kMaxVisited = 65536;

std::string readFile(const std::string& path) {
  int raw = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (raw < 0) return "";
  kj::AutoCloseFd fd(raw);
  std::string text;
  char buffer[4096];
  for (;;) {
    ssize_t got = read(fd, buffer, sizeof(buffer));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return text;
    text.append(buffer, static_cast<size_t>(got));
  }
}

// Children belong to the thread that forked them.
std::vector<pid_t> childrenOf(pid_t pid) {
  std::vector<pid_t> children;
  std::string tasks = "/proc/" + std::to_string(pid) + "/task";
  DIR* dir = opendir(tasks.c_str());
  if (dir == nullptr) return children;
  KJ_DEFER(closedir(dir));
  while (dirent* entry = readdir(dir)) {
    if (entry->d_name[0] == '.') continue;
    std::string text = readFile(tasks + "/" + entry->d_name + "/children");
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

struct Stat {
  char state = '\0';
  pid_t parent = 0;
};

// "pid (comm) state ppid …", where comm may hold anything, also ")".
Stat statOf(pid_t pid) {
  std::string text = readFile("/proc/" + std::to_string(pid) + "/stat");
  size_t close = text.rfind(") ");
  if (close == std::string::npos || close + 4 >= text.size()) return {};
  Stat stat;
  stat.state = text[close + 2];
  stat.parent = static_cast<pid_t>(atoi(text.c_str() + close + 4));
  return stat;
}

}  // namespace

size_t signalDescendants(int signal, const std::vector<pid_t>& except) {
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
      Stat stat = statOf(child);
      if (stat.parent != parent || stat.state == 'Z' || stat.state == 'X') continue;
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
    Stat stat = statOf(queue[i]);
    bool ours = stat.parent == getpid() ||
                std::find(queue.begin(), queue.end(), stat.parent) != queue.end();
    if (ours) syscall(SYS_pidfd_send_signal, pidfd.get(), signal, nullptr, 0);
  }
  return alive;
}

}  // namespace cordon::agent
