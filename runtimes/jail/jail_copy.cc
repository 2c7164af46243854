#include "runtimes/jail/jail_copy.h"

#include <errno.h>
#include <fcntl.h>
#include <kj/debug.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "copier/job_file.h"
#include "ipc/fdpass.h"
#include "runtimes/detached_mounts.h"
#include "runtimes/jail/jail_spec.h"
#include "runtimes/sealed_file.h"

namespace cordon::runtimes {

namespace {

static_assert(copier::kJobFd == jailer::kFirstExtraFd);
static_assert(copier::kEndFd <= jailer::kFirstExtraFd + jailer::kMostExtraFds);

// A root with nothing in it; the jailer wants to see a /proc.
kj::AutoCloseFd emptyRoot() {
  auto root =
      detachedTmpfs({{"source", "copier"}, {"mode", "0555"}, {"size", "4096"}, {"nr_inodes", "4"}},
                    MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC);
  KJ_SYSCALL(mkdirat(root, "proc", 0555));
  mount_attr attributes = {};
  attributes.attr_set = MOUNT_ATTR_RDONLY;
  KJ_SYSCALL(mount_setattr(root, "", AT_EMPTY_PATH, &attributes, sizeof(attributes)));
  return root;
}

// The directories of the image, whose upper layers are numbered as its mounts.
std::vector<copier::Root> rootsOf(const CopyRequest& request) {
  std::vector<copier::Root> roots;
  bool writable = request.layers->size() == jailer::kWritableRootLayers;
  if (request.job.task != copier::Task::kSave || !writable) return roots;
  auto& mounts = request.image->mounts;
  for (uint32_t i = 0; i < mounts.size(); ++i) {
    if (mounts[i].directory) roots.push_back({i, mounts[i].where});
  }
  return roots;
}

bool isKnown(const copier::Report& report) {
  return report.magic == copier::Report::kMagic && report.outcome >= copier::Outcome::kDone &&
         report.outcome <= copier::Outcome::kFailed && report.bound <= copier::Bound::kLinks;
}

}  // namespace

JailCopy::JailCopy(broker::Children& children, kj::Timer& timer, const CopierParts& parts,
                   CopyRequest request)
    : children_(children), timer_(timer), parts_(parts), request_(kj::mv(request)) {}

JailCopy::~JailCopy() noexcept(false) {
  if (!over_) request_.group->killPass();
}

kj::Promise<CopyResult> JailCopy::run() {
  auto launcher = kj::heap<JailLauncher>(children_, timer_, plan());
  auto launched = launcher->run();
  return launched.attach(kj::mv(launcher))
      .then([this](JailLauncher::Result&& result) -> kj::Promise<CopyResult> {
        if (result.is<CreateFailure>()) {
          over_ = true;
          return CopyResult(kj::mv(result.get<CreateFailure>()));
        }
        init_ = kj::mv(result.get<Launched>().init);
        return converse();
      });
}

JailLaunch JailCopy::plan() {
  JailLaunch launch;
  launch.name = request_.name + "'s copier";
  launch.program = parts_.jailer;
  launch.open = [this]() { return open(); };
  launch.killAll = [this]() { return killAll(); };
  return launch;
}

JailDescriptors JailCopy::open() {
  auto bytes = copier::encodeJob(request_.job, rootsOf(request_));
  job_ =
      sealedFile("copier-job",
                 kj::arrayPtr(reinterpret_cast<const kj::byte*>(bytes.data()), bytes.size()), 0600);
  auto pair = ipc::socketPair(SOCK_SEQPACKET | SOCK_NONBLOCK);
  report_ = kj::mv(pair.a);
  observer_ = kj::heap<kj::UnixEventPort::FdObserver>(children_.port(), report_.get(),
                                                      kj::UnixEventPort::FdObserver::OBSERVE_READ);
  JailDescriptors with;
  with.control = kj::mv(pair.b);
  with.root = emptyRoot();
  with.inside = parts_.program;
  with.filter = parts_.filter;
  with.cgroup = request_.group->initFds();
  with.cgroupNamespace = request_.cgroups->namespaceFd();
  with.spec = sealedCopierSpec(request_, with.cgroupFds());
  with.extra = {{job_.get(), copier::kJobFd}, {request_.archive, copier::kArchiveFd}};
  constexpr int kTargets[] = {copier::kWorkFd, copier::kTmpFd, copier::kMergedFd, copier::kLowerFd,
                              copier::kUpperFd};
  bool saves = request_.job.task == copier::Task::kSave;
  for (size_t i = 0; i < request_.layers->size(); ++i) {
    if (!saves && i > jailer::kMergedLayer) break;
    with.extra.emplace_back((*request_.layers)[i].get(), kTargets[i]);
  }
  return with;
}

kj::Promise<CopyResult> JailCopy::converse() {
  auto late = timer_.afterDelay(request_.timeout).then([]() {
    return CopyResult(
        CreateFailure{rpc::Reason::SNAPSHOT_FAILED, "the copying did not finish in time"});
  });
  return readReport().exclusiveJoin(kj::mv(late)).then([this](CopyResult&& result) {
    return finish(kj::mv(result));
  });
}

kj::Promise<CopyResult> JailCopy::readReport() {
  copier::Report report;
  auto bytes = kj::arrayPtr(reinterpret_cast<kj::byte*>(&report), sizeof(report));
  auto received = ipc::receiveWithFds(report_, bytes, 0);
  KJ_IF_MAYBE (message, received) {
    bool good = message->bytes == sizeof(report) && !message->truncated && isKnown(report);
    if (good) return CopyResult(report);
    return CopyResult(
        CreateFailure{rpc::Reason::SNAPSHOT_FAILED, "the copier ended without a word"});
  }
  return KJ_ASSERT_NONNULL(observer_)->whenBecomesReadable().then(
      [this]() { return readReport(); });
}

// When it has reported it ends by itself; in any case it ends now.
kj::Promise<CopyResult> JailCopy::finish(CopyResult result) {
  auto& init = *KJ_ASSERT_NONNULL(init_);
  init.signal(SIGKILL);
  auto held = kj::heap<CopyResult>(kj::mv(result));
  return init.onExit()
      .ignoreResult()
      .then([this]() { return killAll(); })
      .then([held = kj::mv(held)]() mutable { return kj::mv(*held); });
}

kj::Promise<void> JailCopy::killAll(unsigned attempts) {
  children_.reapStrays();
  if (request_.group->killPass() || attempts == 0) {
    over_ = true;
    return kj::READY_NOW;
  }
  return timer_.afterDelay(2 * kj::MILLISECONDS).then([this, attempts]() {
    return killAll(attempts - 1);
  });
}

}  // namespace cordon::runtimes
