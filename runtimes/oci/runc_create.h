// One `runc run --detach`, from bundle to adopted init.
#pragma once
#include <kj/timer.h>

#include <string>

#include "runtimes/oci/bundle.h"
#include "runtimes/oci/runc.h"

namespace cordon::runtimes {

class RuncCreate {
 public:
  RuncCreate(broker::Children& children, kj::Timer& timer, const RuncOptions& options,
             CreateRequest request);
  KJ_DISALLOW_COPY(RuncCreate);

  // Call once, with the bundle but for its cgroup namespace; this object must live until the
  // promise resolves. On a failure all processes in the sandbox's cgroups are dead and the files
  // are gone.
  kj::Promise<kj::OneOf<Started, CreateFailure>> run(BundleInput input);

 private:
  using Result = kj::OneOf<Started, CreateFailure>;

  kj::Own<broker::Child> start();
  kj::Promise<Result> afterRun(broker::ExitStatus status);
  kj::Promise<Result> afterTimeout();
  kj::Promise<Result> fail(rpc::Reason reason, std::string detail, int error = 0);
  bool isInItsCgroup(pid_t pid) const;

  broker::Children& children_;
  kj::Timer& timer_;
  const RuncOptions& options_;
  CreateRequest request_;
  kj::AutoCloseFd output_;
  Layers layers_;
  kj::Own<broker::Child> runc_;
  kj::Own<broker::Child> stray_;  // an init that no cgroup kill reaches
  // The init falls to us when runc exits; until it is adopted nobody else may
  // take its status.
  kj::Maybe<broker::Children::StrayHold> hold_;
};

}  // namespace cordon::runtimes
