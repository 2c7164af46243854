// cordon-copier for all runtimes that have snapshots: whoever made a sandbox, what
// was written in it is taken and put back by the same program in the same jail.
#pragma once
#include <kj/async.h>
#include <kj/timer.h>

#include <string>

#include "runtimes/jail/jail_copy.h"
#include "runtimes/runtime.h"

namespace cordon::runtimes {

class Copying {
 public:
  // Absolute paths of cordon-jailer and cordon-copier. The copier is read here, once:
  // what runs can't be changed by whoever replaces the file later. Where it can't be
  // read there are no snapshots. `children` and `timer` must outlive this.
  Copying(broker::Children& children, kj::Timer& timer, const std::string& jailer,
          const std::string& copier);
  KJ_DISALLOW_COPY(Copying);

  // As Runtime::snapshotKind(), snapshot() and restore().
  const char* kind() const { return program_.get() < 0 ? "" : "filesystem"; }
  kj::Promise<CopyResult> snapshot(CopyRequest request);
  kj::Promise<CopyResult> restore(CopyRequest request);

 private:
  kj::Promise<CopyResult> copy(CopyRequest request);

  broker::Children& children_;
  kj::Timer& timer_;
  kj::AutoCloseFd program_, filter_;
  CopierParts parts_;
};

// Of layers: nothing is written through them any more.
void closeForWriting(const Layers& layers);

}  // namespace cordon::runtimes
