#include "vm_agent/proc_file.h"

#include <fcntl.h>
#include <kj/io.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

namespace cordon::agent {

std::string readProcFile(const std::string& path) {
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

pid_t statusNumber(const std::string& status, const char* key) {
  // Names in the file are escaped: a line's beginning is the kernel's.
  std::string line = std::string("\n") + key + ":";
  size_t at = status.find(line);
  return at == std::string::npos ? 0 : static_cast<pid_t>(atoi(status.c_str() + at + line.size()));
}

std::string procPath(pid_t pid) {
  return "/proc/" + std::to_string(pid);
}

// "pid (comm) state ppid …", where comm may hold anything, also ")".
ProcStat readProcStat(const std::string& directory) {
  std::string text = readProcFile(directory + "/stat");
  size_t close = text.rfind(") ");
  if (close == std::string::npos || close + 4 >= text.size()) return {};
  return {text[close + 2], static_cast<pid_t>(atoi(text.c_str() + close + 4))};
}

}  // namespace cordon::agent
