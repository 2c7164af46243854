#include "runtimes/copying.h"

#include <errno.h>
#include <fcntl.h>
#include <kj/debug.h>
#include <spdlog/spdlog.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

#include "jailer/seccomp.h"
#include "runtimes/sealed_file.h"

namespace cordon::runtimes {

Copying::Copying(broker::Children& children, kj::Timer& timer, const std::string& jailer,
                 const std::string& copier)
    : children_(children), timer_(timer) {
  if (access(copier.c_str(), R_OK) != 0) {
    spdlog::warn("there are no snapshots here: no cordon-copier at {}: {}", copier,
                 strerror(errno));
    return;
  }
  filter_ = jailer::compileCopierProfile().bpf;
  program_ = sealedProgram("cordon-copier", copier);
  parts_ = {jailer, program_.get(), filter_.get()};
}

kj::Promise<CopyResult> Copying::copy(CopyRequest request) {
  auto job = kj::heap<JailCopy>(children_, timer_, parts_, kj::mv(request));
  auto promise = job->run();
  return promise.attach(kj::mv(job));
}

kj::Promise<CopyResult> Copying::snapshot(CopyRequest request) {
  return copy(kj::mv(request));
}

kj::Promise<CopyResult> Copying::restore(CopyRequest request) {
  auto* layers = request.layers;
  return copy(kj::mv(request)).then([layers](CopyResult&& result) {
    bool done = result.is<copier::Report>() &&
                result.get<copier::Report>().outcome == copier::Outcome::kDone;
    // From here on they are for reading, as every sandbox's.
    if (done) closeForWriting(*layers);
    return kj::mv(result);
  });
}

void closeForWriting(const Layers& layers) {
  struct mount_attr attributes = {};
  attributes.attr_set =
      MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC;
  for (auto& layer : layers) {
    KJ_SYSCALL(
        mount_setattr(layer, "", AT_EMPTY_PATH | AT_RECURSIVE, &attributes, sizeof(attributes)));
  }
}

}  // namespace cordon::runtimes
