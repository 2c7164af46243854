#include <fcntl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <climits>

#include "jailer/steps.h"

namespace cordon::jailer {

void fail(Step step, int error, uint32_t detail) {
  Report report;
  report.kind = Report::kFailed;
  report.step = static_cast<uint32_t>(step);
  report.error = error < 0 ? errno : error;
  report.detail = detail;
  // The broker sees the exit in any case.
  ssize_t ignored = write(kStatusFd, &report, sizeof(report));
  static_cast<void>(ignored);
  _exit(1);
}

namespace {
// The child has what its parent wrote.
Report g_last;
}  // namespace

void done(Step step) {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  g_last.ends[static_cast<uint32_t>(step)] =
      static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

void noteNamespace(size_t number, uint64_t inode) {
  g_last.namespaces[number] = inode;
}

void noteCoreCookie(uint64_t cookie) {
  g_last.coreCookie = cookie;
}

void reportDone() {
  g_last.kind = Report::kDone;
  require(Step::kExec, write(kStatusFd, &g_last, sizeof(g_last)));
}

void closeUnnamed() {
  constexpr unsigned kFirstUnnamed = kFirstExtraFd + kMostExtraFds;
  require(Step::kDescriptors, syscall(SYS_close_range, kFirstUnnamed, UINT_MAX, 0));
  for (int fd : {kControlFd, kSpecFd, kStatusFd, kRootFd, kAgentFd, kFilterFd}) {
    require(Step::kDescriptors, fcntl(fd, F_GETFD));
  }
  // So that the program's exec is what ends the status socket, and nothing of ours
  // comes into the sandbox even if a later step forgot it.
  require(Step::kDescriptors, syscall(SYS_close_range, 3u, UINT_MAX, CLOSE_RANGE_CLOEXEC));
}

void closeAllButThePrograms(JailSpec::Reader spec) {
  // Held open to the end: the socket to report on, what is exec'd, the filter.
  auto close = [](unsigned from, unsigned to) {
    require(Step::kDescriptors, syscall(SYS_close_range, from, to, 0));
  };
  close(kSpecFd, kSpecFd);
  close(kRootFd, kRootFd);
  close(kFirstCgroupFd, kFirstExtraFd - 1);
  close(kFirstExtraFd + spec.getExtraFds(), UINT_MAX);
  for (uint32_t i = 0; i < spec.getExtraFds(); ++i) {
    int fd = kFirstExtraFd + static_cast<int>(i);
    // Not given, as a layer that there is none of.
    if (fcntl(fd, F_GETFD) < 0) continue;
    require(Step::kDescriptors, fcntl(fd, F_SETFD, 0));
  }
}

}  // namespace cordon::jailer
