// One run of cordon-copier in a jail of its own.
#pragma once
#include <kj/async-unix.h>
#include <kj/timer.h>

#include "runtimes/jail/jail_launch.h"

namespace cordon::runtimes {

// Descriptors that all runs have in common.
struct CopierParts {
  std::string jailer;
  int program = -1;  // sealed memfd
  int filter = -1;
};

// Owned by its promise.
class JailCopy {
 public:
  JailCopy(broker::Children& children, kj::Timer& timer, const CopierParts& parts,
           CopyRequest request);
  ~JailCopy() noexcept(false);
  KJ_DISALLOW_COPY(JailCopy);

  kj::Promise<CopyResult> run();

 private:
  JailLaunch plan();
  JailDescriptors open();
  kj::Promise<CopyResult> converse();
  kj::Promise<CopyResult> readReport();
  kj::Promise<CopyResult> finish(CopyResult result);
  kj::Promise<void> killAll(unsigned attempts = 1000);

  broker::Children& children_;
  kj::Timer& timer_;
  const CopierParts& parts_;
  CopyRequest request_;
  kj::AutoCloseFd job_;
  kj::AutoCloseFd report_;
  kj::Maybe<kj::Own<kj::UnixEventPort::FdObserver>> observer_;
  kj::Maybe<kj::Own<broker::Child>> init_;
  bool over_ = false;  // nothing of it runs any more
};

}  // namespace cordon::runtimes
