#include "broker/cgroups_sweep.h"

#include <errno.h>
#include <kj/debug.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>

// glibc 2.36 forgot the guard.
extern "C" {
#include <sys/pidfd.h>
}

namespace cordon::broker {

namespace {

constexpr int kMaxDepth = 16;
constexpr size_t kMaxKillsPerPass = 512;
constexpr size_t kBatch = 128;  // pidfds open at once
constexpr size_t kMaxNamedProcesses = 8;

void collect(CgroupDir top, int depth, std::vector<CgroupDir>& out) {
  if (depth < kMaxDepth) {
    for (auto& name : top.children()) {
      auto child = top.child(name);
      KJ_IF_MAYBE (dir, child) collect(kj::mv(*dir), depth + 1, out);
    }
  }
  out.push_back(kj::mv(top));
}

struct Target {
  pid_t pid;
  kj::AutoCloseFd pidfd;
};

// The ones that can be opened. Out of descriptors: as many as there were.
std::vector<Target> openTargets(const std::vector<pid_t>& pids, size_t begin, size_t end) {
  std::vector<Target> targets;
  for (size_t i = begin; i < end; ++i) {
    // 0: a process that has no number in our pid namespace.
    if (pids[i] <= 0 || pids[i] == getpid()) continue;
    int fd = pidfd_open(pids[i], 0);
    if (fd >= 0) {
      targets.push_back({pids[i], kj::AutoCloseFd(fd)});
      continue;
    }
    int error = errno;
    if (error == EMFILE || error == ENFILE) break;
    if (error != ESRCH && error != EINVAL) KJ_FAIL_SYSCALL("pidfd_open", error, pids[i]);
  }
  return targets;
}

void removeBelow(const CgroupDir& parent, const std::string& name, int depth,
                 std::set<std::string>& seen, std::vector<LeftOver>& left) {
  auto found = parent.child(name);
  KJ_IF_MAYBE (dir, found) {
    seen.insert(dir->label());
    if (depth < kMaxDepth) {
      for (auto& child : dir->children()) removeBelow(*dir, child, depth + 1, seen, left);
    }
    int error = parent.removeChild(name);
    if (error == 0) return;
    left.push_back({"cgroup", dir->label(), error});
    size_t named = 0;
    for (pid_t pid : dir->processes()) {
      if (named++ == kMaxNamedProcesses) break;
      left.push_back({"process", std::to_string(pid), EBUSY});
    }
  }
}

}  // namespace

std::vector<CgroupDir> subtree(CgroupDir top) {
  std::vector<CgroupDir> all;
  collect(kj::mv(top), 0, all);
  return all;
}

bool killListed(const std::function<std::vector<pid_t>()>& list) {
  auto pids = list();
  if (pids.empty()) return true;
  size_t total = std::min(pids.size(), kMaxKillsPerPass);
  for (size_t begin = 0; begin < total; begin += kBatch) {
    auto targets = openTargets(pids, begin, std::min(begin + kBatch, total));
    auto again = list();
    std::set<pid_t> still(again.begin(), again.end());
    for (auto& target : targets) {
      if (still.count(target.pid) == 0) continue;
      if (pidfd_send_signal(target.pidfd.get(), SIGKILL, nullptr, 0) < 0 && errno != ESRCH) {
        int error = errno;
        KJ_FAIL_SYSCALL("pidfd_send_signal", error, target.pid);
      }
    }
  }
  return false;
}

void removeSubtree(const CgroupDir& parent, const std::string& name, std::set<std::string>& seen,
                   std::vector<LeftOver>& left) {
  removeBelow(parent, name, 0, seen, left);
}

}  // namespace cordon::broker
