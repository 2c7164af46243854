#include "runtimes/jail/jail_create.h"

#include <errno.h>
#include <fcntl.h>
#include <kj/debug.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <string.h>
#include <sys/mount.h>
#include <time.h>
#include <unistd.h>

#include "runtimes/jail/jail_spec.h"
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

// The image with all that is bound beneath it, out of the broker's namespace.
kj::AutoCloseFd detachedTree(const std::string& path) {
  int fd;
  KJ_SYSCALL(
      fd = open_tree(AT_FDCWD, path.c_str(), OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE),
      path);
  return kj::AutoCloseFd(fd);
}

uint64_t monotonicNs() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace

JailCreate::JailCreate(broker::Children& children, kj::Timer& timer, const JailOptions& options,
                       const JailParts& parts, CreateRequest request)
    : children_(children),
      timer_(timer),
      options_(options),
      parts_(parts),
      request_(kj::mv(request)) {}

kj::Promise<JailCreate::Result> JailCreate::run() {
  auto fault = kj::runCatchingExceptions([&]() {
    hold_ = children_.holdStrays();
    spawning_ = monotonicNs();
    jailer_ = start();
    spawned_ = monotonicNs();
  });
  KJ_IF_MAYBE (exception, fault) {
    spdlog::error("{}: cordon-jailer could not be started: {}", request_.name,
                  exception->getDescription().cStr());
    bool limit = exception->getType() == kj::Exception::Type::OVERLOADED;
    return fail(limit ? rpc::Reason::HOST_LIMIT : rpc::Reason::RUNTIME_FAILED,
                "cordon-jailer could not be started");
  }
  request_.control = nullptr;  // the agent's end is the agent's alone

  auto late = timer_.afterDelay(options_.createTimeout).then([]() { return false; });
  return readReports()
      .then([]() { return true; })
      .exclusiveJoin(kj::mv(late))
      .then([this](bool told) -> kj::Promise<Result> {
        if (told) return afterReports();
        return fail(rpc::Reason::RUNTIME_TIMEOUT, "cordon-jailer did not finish in time");
      });
}

kj::Own<broker::Child> JailCreate::start() {
  int ends[2];
  KJ_SYSCALL(pipe2(ends, O_CLOEXEC | O_NONBLOCK));
  status_ = kj::AutoCloseFd(ends[0]);
  kj::AutoCloseFd theirs(ends[1]);
  observer_ = kj::heap<kj::UnixEventPort::FdObserver>(children_.port(), status_.get(),
                                                      kj::UnixEventPort::FdObserver::OBSERVE_READ);

  auto root = detachedTree(request_.image->rootfs);
  auto cgroup = request_.cgroups->initFds();
  auto cgroupFds = static_cast<uint32_t>(cgroup.size());
  int ns = request_.cgroups->namespaceFd();
  if (ns >= 0) ++cgroupFds;
  auto spec = sealedSpec(request_, parts_.cpus, cgroupFds);

  broker::SpawnSpec spawn;
  spawn.program = options_.jailer;
  spawn.argv = {"cordon-jailer"};
  spawn.fds = {
      {request_.control.get(), jailer::kControlFd},
      {spec.get(), jailer::kSpecFd},
      {theirs.get(), jailer::kStatusFd},
      {root.get(), jailer::kRootFd},
      {parts_.agent, jailer::kAgentFd},
      {request_.explain ? parts_.filters.asking : parts_.filters.refusing, jailer::kFilterFd}};
  int target = jailer::kFirstCgroupFd;
  for (auto& fd : cgroup) spawn.fds.emplace_back(fd.get(), target++);
  if (ns >= 0) spawn.fds.emplace_back(ns, target++);
  return children_.spawn(spawn);
}

// Until the end of the pipe: the jailer has gone, and the init has failed or
// become the agent. Each says one thing; at anything else nobody listens further.
kj::Promise<void> JailCreate::readReports() {
  for (;;) {
    jailer::Report report;
    ssize_t got = read(status_, &report, sizeof(report));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) {
      return KJ_ASSERT_NONNULL(observer_)->whenBecomesReadable().then(
          [this]() { return readReports(); });
    }
    if (got == 0) return kj::READY_NOW;
    if (!take(report, got)) {
      garbled_ = true;
      return kj::READY_NOW;
    }
  }
}

bool JailCreate::take(const jailer::Report& report, ssize_t size) {
  if (size != sizeof(report) || report.magic != jailer::Report::kMagic) return false;
  if (report.kind == jailer::Report::kBorn && !born_) {
    born_ = report;
    return true;
  }
  if (report.kind == jailer::Report::kDone && !done_) {
    done_ = report;
    return true;
  }
  // The first is the cause of what follows: a child of the jailer, then itself.
  if (report.kind == jailer::Report::kFailed && failures_++ < kMostFailures) {
    if (!failed_) failed_ = report;
    return true;
  }
  return false;
}

kj::Promise<JailCreate::Result> JailCreate::afterReports() {
  if (failed_) {
    auto step = static_cast<jailer::Step>(failed_->step);
    std::string what = std::string("the jailer's step `") + jailer::stepName(step) + "`";
    if (step == jailer::Step::kMounts) what += " (mount " + std::to_string(failed_->detail) + ")";
    spdlog::error("{}: {}: {}", request_.name, what, strerror(failed_->error));
    return fail(reasonOf(failed_->error), what + " failed", failed_->error);
  }
  if (garbled_) {
    return fail(rpc::Reason::RUNTIME_FAILED, "the jailer's reports are none");
  }
  if (!born_) return fail(rpc::Reason::RUNTIME_FAILED, "the jailer ended without a word");
  auto adopted = children_.adopt(born_->pid);
  hold_ = nullptr;
  children_.reapStrays();
  KJ_IF_MAYBE (init, adopted) {
    KJ_IF_MAYBE (ended, (*init)->exited()) {
      return fail(rpc::Reason::RUNTIME_FAILED,
                  "the agent ended at once with " + std::to_string(ended->code));
    }
    Result result;
    auto& started = result.init<Started>(Started{kj::mv(*init), steps()});
    if (done_) {
      started.namespaces = done_->namespaces;
      started.core = {done_->coreCookie, "PR_SCHED_CORE_GET by the sandbox's pid 1, at creation"};
    }
    return kj::mv(result);
  }
  return fail(rpc::Reason::RUNTIME_FAILED, "the init that the jailer named is no child of ours");
}

// Whatever it has said: it may stand before its cgroup, where no kill by cgroup
// reaches it.
kj::Promise<void> JailCreate::endJailer() {
  if (jailer_.get() == nullptr || jailer_->exited() != nullptr) return kj::READY_NOW;
  return killProgram(*jailer_, timer_, kKilledJailerEnds);
}

std::vector<std::pair<std::string, int64_t>> JailCreate::steps() const {
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

kj::Promise<JailCreate::Result> JailCreate::fail(rpc::Reason reason, std::string detail,
                                                 int error) {
  request_.control = nullptr;
  hold_ = nullptr;  // nobody's status matters any more
  return endJailer()
      .then([this]() { return killCgroups(*request_.cgroups, children_, timer_, request_.name); })
      .then([this, reason, detail = std::move(detail), error]() mutable {
        children_.reapStrays();
        Result result;
        result.init<CreateFailure>(CreateFailure{reason, std::move(detail), error});
        return result;
      });
}

}  // namespace cordon::runtimes
