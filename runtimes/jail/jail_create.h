// One run of cordon-jailer.
#pragma once
#include <kj/async-unix.h>
#include <kj/timer.h>

#include <optional>

#include "jailer/report.h"
#include "runtimes/jail/jail.h"

namespace cordon::runtimes {

// Descriptors that all sandboxes have in common.
struct JailParts {
  int agent;  // sealed memfd, 0111
  JailFilters filters;
  unsigned cpus;
};

// Owned by its promise.
class JailCreate {
 public:
  using Result = kj::OneOf<Started, CreateFailure>;
  JailCreate(broker::Children& children, kj::Timer& timer, const JailOptions& options,
             const JailParts& parts, CreateRequest request);

  kj::Promise<Result> run();

 private:
  kj::Own<broker::Child> start();
  kj::Promise<void> readReports();
  bool take(const jailer::Report& report, ssize_t size);
  kj::Promise<Result> afterReports();
  kj::Promise<void> endJailer();
  std::vector<std::pair<std::string, int64_t>> steps() const;
  kj::Promise<Result> fail(rpc::Reason reason, std::string detail, int error = 0);

  broker::Children& children_;
  kj::Timer& timer_;
  const JailOptions& options_;
  const JailParts& parts_;
  CreateRequest request_;
  kj::Maybe<broker::Children::StrayHold> hold_;
  kj::AutoCloseFd status_;
  kj::Maybe<kj::Own<kj::UnixEventPort::FdObserver>> observer_;
  kj::Own<broker::Child> jailer_;
  kj::Maybe<kj::Own<broker::Child>> init_;
  static constexpr unsigned kMostFailures = 2;
  std::optional<jailer::Report> born_, failed_, done_;
  unsigned failures_ = 0;
  bool garbled_ = false;
  uint64_t spawning_ = 0, spawned_ = 0;
};

}  // namespace cordon::runtimes
