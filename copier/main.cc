// cordon-copier: saves a frozen sandbox's layers to an archive, or restores one
// into a new sandbox's. It runs in a jail of its own (cordon-jailer): no file
// system but what its descriptors reach, no network, a filter of some 50 calls,
// and in its user namespace only the capabilities that the task needs.
//
// It reads its job and the named descriptors, writes one Report, and exits.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <new>

#include "copier/files.h"
#include "copier/job_file.h"
#include "copier/restore.h"
#include "copier/save.h"

namespace cordon::copier {
namespace {

constexpr size_t kLargestJob = 1 << 20;

Layers layersOf(bool saving, bool withRoot) {
  Layers layers{kWorkFd, kTmpFd};
  if (withRoot) layers.merged = kMergedFd;
  if (withRoot && saving) {
    layers.lower = kLowerFd;
    layers.upper = kUpperFd;
  }
  return layers;
}

void work(Report& report) {
  struct stat status;
  if (fstat(kJobFd, &status) < 0) failed(errno);
  auto size = static_cast<size_t>(status.st_size);
  if (size > kLargestJob) failed(EMSGSIZE);
  std::vector<char> bytes(size);
  if (pread(kJobFd, bytes.data(), size, 0) != status.st_size) failed(EIO);
  Job job;
  std::vector<Root> roots;
  if (!decodeJob(bytes.data(), size, job, roots)) failed(EBADMSG);

  bool saving = job.task == Task::kSave;
  bool withRoot = saving ? !roots.empty() : fcntl(kMergedFd, F_GETFD) >= 0;
  auto layers = layersOf(saving, withRoot);
  if (saving) {
    Writer out(kArchiveFd, job.bounds);
    save(layers, roots, job.bounds, out, report);
    out.finish(report);
  } else {
    // Wholly, before anything is believed of it.
    verify(kArchiveFd, job.archiveBytes, job.sha256);
    restore(kArchiveFd, layers, job.bounds, report);
  }
  report.outcome = Outcome::kDone;
}

}  // namespace
}  // namespace cordon::copier

int main() {
  using namespace cordon::copier;
  umask(0);
  Report report;
  try {
    work(report);
  } catch (const Stop& stop) {
    report.outcome = stop.outcome;
    report.bound = stop.bound;
    report.error = stop.error;
  } catch (const std::bad_alloc&) {
    report.error = ENOMEM;
  }
  return write(kReportFd, &report, sizeof(report)) == sizeof(report) ? 0 : 1;
}
