#include "runtimes/jail/jail_launch.h"

#include <errno.h>
#include <fcntl.h>
#include <kj/debug.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "ipc/fdpass.h"
#include "runtimes/kill_cgroups.h"

namespace cordon::runtimes {

namespace {

constexpr auto kKilledJailerEnds = 2 * kj::SECONDS;

// The host has no more of something, which may be otherwise in a moment; else it
// is the jailer that can't do what it should.
rpc::Reason reasonOf(int error) {
  for (int limit : {EAGAIN, EMFILE, ENFILE, ENOMEM, ENOSPC, EUSERS}) {
    if (error == limit) return rpc::Reason::HOST_LIMIT;
  }
  return rpc::Reason::RUNTIME_FAILED;
}

uint64_t monotonicNs() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace

JailLauncher::~JailLauncher() noexcept(false) {
  // Dropped: it may stand before its cgroup, where no kill by cgroup reaches it.
  // Whoever waits for our children reaps it.
  if (jailer_.get() != nullptr && jailer_->exited() == nullptr) kill(-jailer_->pid(), SIGKILL);
}

JailLauncher::JailLauncher(broker::Children& children, kj::Timer& timer, JailLaunch launch)
    : children_(children), timer_(timer), launch_(kj::mv(launch)) {}

kj::Promise<JailLauncher::Result> JailLauncher::run() {
  auto fault = kj::runCatchingExceptions([&]() {
    hold_ = children_.holdStrays();
    spawning_ = monotonicNs();
    jailer_ = start();
    spawned_ = monotonicNs();
  });
  KJ_IF_MAYBE (exception, fault) {
    spdlog::error("{}: cordon-jailer could not be started: {}", launch_.name,
                  exception->getDescription().cStr());
    bool limit = exception->getType() == kj::Exception::Type::OVERLOADED;
    return fail(limit ? rpc::Reason::HOST_LIMIT : rpc::Reason::RUNTIME_FAILED,
                "cordon-jailer could not be started");
  }

  auto late = timer_.afterDelay(launch_.timeout).then([]() { return false; });
  return readReports()
      .then([]() { return true; })
      .exclusiveJoin(kj::mv(late))
      .then([this](bool told) -> kj::Promise<Result> {
        if (told) return afterReports();
        return fail(rpc::Reason::RUNTIME_TIMEOUT, "cordon-jailer did not finish in time");
      });
}

kj::Own<broker::Child> JailLauncher::start() {
  auto pair = ipc::socketPair(SOCK_SEQPACKET | SOCK_NONBLOCK);
  status_ = kj::mv(pair.a);
  observer_ = kj::heap<kj::UnixEventPort::FdObserver>(children_.port(), status_.get(),
                                                      kj::UnixEventPort::FdObserver::OBSERVE_READ);
  // Ours are closed on the way out: the program's end of the control socket is its
  // alone.
  auto with = launch_.open();
  broker::SpawnSpec spawn;
  spawn.program = launch_.program;
  spawn.argv = {"cordon-jailer"};
  spawn.fds = {{with.control.get(), jailer::kControlFd}, {with.spec.get(), jailer::kSpecFd},
               {pair.b.get(), jailer::kStatusFd},        {with.root.get(), jailer::kRootFd},
               {with.inside, jailer::kAgentFd},          {with.filter, jailer::kFilterFd}};
  int target = jailer::kFirstCgroupFd;
  for (auto& fd : with.cgroup) spawn.fds.emplace_back(fd.get(), target++);
  if (with.cgroupNamespace >= 0) spawn.fds.emplace_back(with.cgroupNamespace, target++);
  for (auto& extra : with.extra) spawn.fds.push_back(extra);
  return children_.spawn(spawn);
}

// Until the end of the socket: the jailer has gone, and the init has failed or
// become the program. Each says one thing; at anything else nobody listens further.
kj::Promise<void> JailLauncher::readReports() {
  for (;;) {
    jailer::Report report;
    auto bytes = kj::arrayPtr(reinterpret_cast<kj::byte*>(&report), sizeof(report));
    auto received = ipc::receiveWithFds(status_, bytes, jailer::kWritableRootLayers);
    KJ_IF_MAYBE (message, received) {
      if (message->bytes == 0) return kj::READY_NOW;
      // We have no descriptors left to take them with.
      lacking_ = message->truncated && report.kind == jailer::Report::kLayers;
      if (message->truncated ||
          !take(report, static_cast<size_t>(message->bytes), kj::mv(message->fds))) {
        garbled_ = true;
        return kj::READY_NOW;
      }
    } else {
      return KJ_ASSERT_NONNULL(observer_)->whenBecomesReadable().then(
          [this]() { return readReports(); });
    }
  }
}

bool JailLauncher::take(const jailer::Report& report, size_t size,
                        std::vector<kj::AutoCloseFd> fds) {
  using Kind = jailer::Report::Kind;
  if (size != sizeof(report) || report.magic != jailer::Report::kMagic) return false;
  if (report.kind == Kind::kLayers && !layers_) {
    bool whole =
        fds.size() == jailer::kReadOnlyRootLayers || fds.size() == jailer::kWritableRootLayers;
    layers_ = kj::mv(fds);
    return whole;
  }
  if (!fds.empty()) return false;
  if (report.kind == Kind::kBorn && !born_) {
    born_ = report;
    return true;
  }
  if (report.kind == Kind::kDone && !done_) {
    done_ = report;
    return true;
  }
  // The first is the cause of what follows: a child of the jailer, then itself.
  if (report.kind == Kind::kFailed && failures_++ < kMostFailures) {
    if (!failed_) failed_ = report;
    return true;
  }
  return false;
}

kj::Promise<JailLauncher::Result> JailLauncher::afterReports() {
  if (failed_) {
    auto step = static_cast<jailer::Step>(failed_->step);
    std::string what = std::string("the jailer's step `") + jailer::stepName(step) + "`";
    if (step == jailer::Step::kMounts) what += " (mount " + std::to_string(failed_->detail) + ")";
    spdlog::error("{}: {}: {}", launch_.name, what, strerror(failed_->error));
    return fail(reasonOf(failed_->error), what + " failed", failed_->error);
  }
  if (lacking_) {
    return fail(rpc::Reason::HOST_LIMIT, "no descriptors for what the jailer sends", EMFILE);
  }
  if (garbled_) {
    return fail(rpc::Reason::RUNTIME_FAILED, "the jailer's reports are none");
  }
  if (!born_) return fail(rpc::Reason::RUNTIME_FAILED, "the jailer ended without a word");
  auto adopted = children_.adopt(born_->pid);
  hold_ = nullptr;
  children_.reapStrays();
  KJ_IF_MAYBE (init, adopted) {
    Result result;
    auto& launched = result.init<Launched>(Launched{kj::mv(*init), {}, steps()});
    if (layers_) launched.layers = kj::mv(*layers_);
    if (done_) {
      launched.namespaces = done_->namespaces;
      launched.core = {done_->coreCookie, "PR_SCHED_CORE_GET by the sandbox's pid 1, at creation"};
    }
    return kj::mv(result);
  }
  return fail(rpc::Reason::RUNTIME_FAILED, "the init that the jailer named is no child of ours");
}

// Whatever it has said: it may stand before its cgroup, where no kill by cgroup
// reaches it.
kj::Promise<void> JailLauncher::endJailer() {
  if (jailer_.get() == nullptr || jailer_->exited() != nullptr) return kj::READY_NOW;
  return killProgram(*jailer_, timer_, kKilledJailerEnds);
}

std::vector<std::pair<std::string, int64_t>> JailLauncher::steps() const {
  std::vector<std::pair<std::string, int64_t>> steps;
  if (!done_) return steps;
  auto add = [&steps](std::string name, uint64_t from, uint64_t to) {
    if (from != 0 && to >= from)
      steps.emplace_back(std::move(name), static_cast<int64_t>(to - from));
  };
  auto& ends = done_->ends;
  add("spawn", spawning_, spawned_);
  add("start", spawned_, ends[0]);
  uint64_t last = ends[0];
  for (uint32_t step = 1; step < jailer::kSteps; ++step) {
    if (ends[step] == 0) continue;
    add(jailer::stepName(static_cast<jailer::Step>(step)), last, ends[step]);
    last = ends[step];
  }
  add("exec and word of it", last, monotonicNs());
  return steps;
}

kj::Promise<JailLauncher::Result> JailLauncher::fail(rpc::Reason reason, std::string detail,
                                                     int error) {
  layers_.reset();
  hold_ = nullptr;  // nobody's status matters any more
  return endJailer()
      .then([this]() { return launch_.killAll(); })
      .then([this, reason, detail = std::move(detail), error]() mutable {
        children_.reapStrays();
        Result result;
        result.init<CreateFailure>(CreateFailure{reason, std::move(detail), error});
        return result;
      });
}

}  // namespace cordon::runtimes
