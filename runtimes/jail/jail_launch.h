// One run of cordon-jailer, from descriptors to a process in its jail.
#pragma once
#include <kj/async-unix.h>
#include <kj/timer.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "jailer/report.h"
#include "runtimes/runtime.h"

namespace cordon::runtimes {

// What the jailer is started with.
struct JailDescriptors {
  kj::AutoCloseFd control;  // the program's fd 0
  kj::AutoCloseFd spec;
  kj::AutoCloseFd root;
  int inside = -1;  // sealed memfds: what runs in the jail, and its filter
  int filter = -1;
  std::vector<kj::AutoCloseFd> cgroup;
  int cgroupNamespace = -1;
  std::vector<std::pair<int, int>> extra;  // {fd, target}, from kFirstExtraFd on

  uint32_t cgroupFds() const {
    return static_cast<uint32_t>(cgroup.size()) + (cgroupNamespace >= 0 ? 1 : 0);
  }
};

struct JailLaunch {
  std::string name;     // for the log
  std::string program;  // absolute path of cordon-jailer
  kj::Duration timeout = 10 * kj::SECONDS;
  // Called once, by run(); what it throws fails the launch.
  std::function<JailDescriptors()> open;
  // Kills whatever has been started, when something failed.
  std::function<kj::Promise<void>()> killAll;
};

struct Launched {
  kj::Own<broker::Child> init;
  Layers layers;  // in order of jailer::LayerFd
  // As in Started.
  std::vector<std::pair<std::string, int64_t>> steps;
  broker::NamespaceInodes namespaces{};
  CoreCookie core{};
};

// Owned by its promise.
class JailLauncher {
 public:
  using Result = kj::OneOf<Launched, CreateFailure>;
  JailLauncher(broker::Children& children, kj::Timer& timer, JailLaunch launch);
  ~JailLauncher() noexcept(false);
  KJ_DISALLOW_COPY(JailLauncher);

  kj::Promise<Result> run();

 private:
  kj::Own<broker::Child> start();
  kj::Promise<void> readReports();
  bool take(const jailer::Report& report, size_t size, std::vector<kj::AutoCloseFd> fds);
  kj::Promise<Result> afterReports();
  kj::Promise<void> endJailer();
  std::vector<std::pair<std::string, int64_t>> steps() const;
  kj::Promise<Result> fail(rpc::Reason reason, std::string detail, int error = 0);

  broker::Children& children_;
  kj::Timer& timer_;
  JailLaunch launch_;
  kj::Maybe<broker::Children::StrayHold> hold_;
  kj::AutoCloseFd status_;
  kj::Maybe<kj::Own<kj::UnixEventPort::FdObserver>> observer_;
  kj::Own<broker::Child> jailer_;
  static constexpr unsigned kMostFailures = 2;
  std::optional<jailer::Report> born_, failed_, done_;
  std::optional<Layers> layers_;
  unsigned failures_ = 0;
  bool garbled_ = false;
  bool lacking_ = false;
  uint64_t spawning_ = 0, spawned_ = 0;
};

}  // namespace cordon::runtimes
