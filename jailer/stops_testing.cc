// cordon-jailer as its tests break it: the same pipeline, which after one of its
// steps stops for good and says in its name where ("at step 7"). Who kills it
// then, or what started it, is the test's matter.
//
// The number stands in the file `stop-after` in this program's directory; without
// the file nothing is different. Never installed beside the real one.
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "jailer/steps.h"

namespace cordon::jailer {
namespace {

// Before the first step, when there is still a file to read.
int stopAfter() {
  static const int kStep = [] {
    char path[4096];
    ssize_t length = readlink("/proc/self/exe", path, sizeof(path));
    if (length <= 0) return -1;
    std::string name(path, static_cast<size_t>(length));
    name = name.substr(0, name.rfind('/') + 1) + "stop-after";
    kj::AutoCloseFd file(open(name.c_str(), O_RDONLY | O_CLOEXEC));
    char text[16] = {};
    return file.get() >= 0 && read(file, text, sizeof(text) - 1) > 0 ? atoi(text) : -1;
  }();
  return kStep;
}

void stop(int step) {
  if (stopAfter() != step) return;
  char name[16];
  snprintf(name, sizeof(name), "at step %d", step);
  prctl(PR_SET_NAME, name);
  // Not SIGSTOP, which a pid namespace's init does not take from inside.
  for (;;) poll(nullptr, 0, -1);
}

template <typename T>
T stopWith(int step, T result) {
  stop(step);
  return result;
}

}  // namespace
}  // namespace cordon::jailer

// The lines of run(), each with a stop behind it. A macro's own name inside it
// is the function.
#define closeUnnamed() (stop(0), closeUnnamed(), stop(1))
#define readSpec() stopWith(2, readSpec())
#define joinCgroups(spec) (joinCgroups(spec), stop(3))
#define prepareNamespaces(spec) stopWith(4, prepareNamespaces(spec))
#define becomeInit(spec, prepared) (becomeInit(spec, prepared), stop(5))
#define enterCgroupNamespace(spec) (enterCgroupNamespace(spec), stop(6))
#define enterNetwork(prepared) (enterNetwork(prepared), stop(7))
#define noteNamespaces(prepared) (noteNamespaces(prepared), stop(8))
#define buildRoot(spec, prepared) (buildRoot(spec, prepared), stop(9))
#define setHostname(spec) (setHostname(spec), stop(10))
#define enterRoot() (enterRoot(), stop(11))
#define awaitFurnished(prepared) (awaitFurnished(prepared), stop(12))
#define setLimits(spec) (setLimits(spec), stop(13))
#define isolateCore(spec) (isolateCore(spec), stop(14))
#define becomeUnprivileged(spec, prepared) (becomeUnprivileged(spec, prepared), stop(15))
#define closeAllButThePrograms(spec) (closeAllButThePrograms(spec), stop(16))
#define installFilter() (installFilter(), stop(17))

#include "jailer/main.cc"
