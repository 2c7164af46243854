#include "frontend/bench/process_tree.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace cordon::bench {

namespace {

// "Pss:   123 kB" of such a file; 0 when there is none.
uint64_t field(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(name + ":", 0) == 0) return std::stoull(line.substr(name.size() + 1));
  }
  return 0;
}

// Fields of /proc/PID/stat after the name, which may hold anything.
std::vector<std::string> statFields(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text, '\0');  // nothing of a process that has ended meanwhile
  size_t end = text.rfind(')');
  if (end == std::string::npos) return {};
  std::istringstream rest(text.substr(end + 1));
  std::vector<std::string> fields;
  for (std::string each; rest >> each;) fields.push_back(each);
  return fields;
}

std::vector<pid_t> allPids() {
  std::vector<pid_t> pids;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") == std::string::npos) pids.push_back(std::stoi(name));
  }
  return pids;
}

}  // namespace

pid_t listenerOf(const std::string& address) {
  std::string path = address.rfind("unix:", 0) == 0 ? address.substr(5) : address;
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  if (path.size() >= sizeof name.sun_path) return 0;
  std::memcpy(name.sun_path, path.data(), path.size());
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return 0;
  ucred peer{};
  socklen_t size = sizeof peer;
  bool known = connect(fd, reinterpret_cast<sockaddr*>(&name), sizeof name) == 0 &&
               getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0;
  close(fd);
  return known ? peer.pid : 0;
}

std::vector<pid_t> treeOf(pid_t root) {
  std::map<pid_t, std::vector<pid_t>> children;
  for (pid_t pid : allPids()) {
    auto fields = statFields(pid);
    if (fields.size() > 1) children[std::stoi(fields[1])].push_back(pid);
  }
  std::vector<pid_t> tree{root};
  for (size_t i = 0; i < tree.size(); ++i) {
    const auto& next = children[tree[i]];
    tree.insert(tree.end(), next.begin(), next.end());
  }
  return tree;
}

std::string commandName(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/comm");
  std::string name;
  std::getline(file, name);
  return name;
}

uint64_t residentKib(pid_t pid) {
  return field("/proc/" + std::to_string(pid) + "/status", "VmRSS");
}

uint64_t proportionalKib(pid_t pid) {
  return field("/proc/" + std::to_string(pid) + "/smaps_rollup", "Pss");
}

uint64_t cpuTicks(pid_t pid) {
  auto fields = statFields(pid);
  return fields.size() > 12 ? std::stoull(fields[11]) + std::stoull(fields[12]) : 0;
}

uint64_t endedChildrensCpuTicks(pid_t pid) {
  auto fields = statFields(pid);
  return fields.size() > 14 ? std::stoull(fields[13]) + std::stoull(fields[14]) : 0;
}

uint64_t kernelKib() {
  uint64_t sum = 0;
  for (const char* name : {"Slab", "KernelStack", "PageTables", "Percpu", "Shmem"}) {
    sum += field("/proc/meminfo", name);
  }
  return sum;
}

}  // namespace cordon::bench
