#include "broker/main/snapshots.h"

#include <errno.h>
#include <fcntl.h>
#include <kj/debug.h>
#include <spdlog/spdlog.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include <algorithm>
#include <memory>

#include "broker/main/identity.h"
#include "broker/main/step_times.h"
#include "broker/off_loop.h"

namespace cordon::broker {

namespace {
constexpr auto kFreezes = 5 * kj::SECONDS;
constexpr auto kCopies = 30 * kj::SECONDS;
constexpr uint32_t kMostAtOnce = 4;

// Of what is in a snapshot, whatever the sandbox's limits are.
constexpr uint64_t kLogicalBytes = uint64_t{1} << 40;
constexpr uint32_t kEntries = 1'000'000;
constexpr uint32_t kDepth = 128;
constexpr uint64_t kLinkTableBytes = 32 << 20;
// An entry's name and attributes, and the length of its extents.
constexpr uint64_t kPerEntry = 512;

copier::Bounds boundsFor(const ResolvedLimits& limits, uint64_t room) {
  copier::Bounds bounds = {};
  bounds.dataBytes = limits.rootBytes + limits.diskBytes + limits.tmpBytes;
  bounds.archiveBytes = std::min(room, bounds.dataBytes + kEntries * kPerEntry);
  bounds.logicalBytes = kLogicalBytes;
  bounds.entries = kEntries;
  bounds.depth = kDepth;
  bounds.linkTableBytes = kLinkTableBytes;
  return bounds;
}

std::string hex(const uint8_t (&bytes)[32]) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (uint8_t byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

void unhex(const std::string& text, uint8_t (&bytes)[32]) {
  auto digit = [&](size_t i) { return text[i] <= '9' ? text[i] - '0' : text[i] - 'a' + 10; };
  for (size_t i = 0; i < sizeof(bytes); ++i) {
    bytes[i] = static_cast<uint8_t>(digit(2 * i) * 16 + digit(2 * i + 1));
  }
}

int64_t unixMs() {
  timespec t{};
  clock_gettime(CLOCK_REALTIME, &t);
  return int64_t{t.tv_sec} * 1000 + t.tv_nsec / 1'000'000;
}

Failure about(const char* subject, Failure failure) {
  failure.subject = subject;
  return failure;
}

Failure tooLarge(copier::Bound bound, const copier::Bounds& bounds) {
  const char* subject = "bytes";
  std::string what = "its files, or what you may still keep, are too large";
  uint64_t limit = std::min(bounds.archiveBytes, bounds.dataBytes);
  switch (bound) {
    case copier::Bound::kLogicalBytes:
      subject = "logicalBytes";
      what = "its files are too long, holes counted";
      limit = bounds.logicalBytes;
      break;
    case copier::Bound::kEntries:
      subject = "entries";
      what = "it has too many files";
      limit = bounds.entries;
      break;
    case copier::Bound::kDepth:
      subject = "depth";
      what = "its directories are nested too deeply";
      limit = bounds.depth;
      break;
    case copier::Bound::kLinks:
      subject = "links";
      what = "too many files have several names";
      limit = bounds.linkTableBytes;
      break;
    case copier::Bound::kBytes:
    case copier::Bound::kNone:
      break;
  }
  auto refused = about(subject, failure(rpc::Reason::SNAPSHOT_TOO_LARGE, std::move(what)));
  refused.limit = limit;
  return refused;
}

Failure notWritten(const char* what, int error) {
  if (error == ENOSPC || error == EDQUOT) {
    return failure(rpc::Reason::STATE_FULL, "the disk for snapshots is full", error);
  }
  return failure(rpc::Reason::SNAPSHOT_FAILED, what, error);
}

// Null: it was saved.
kj::Maybe<Failure> whyNotSaved(const runtimes::CopyResult& result, const copier::Bounds& bounds) {
  if (result.is<runtimes::CreateFailure>()) {
    auto& why = result.get<runtimes::CreateFailure>();
    return failure(rpc::Reason::SNAPSHOT_FAILED, why.detail, why.error);
  }
  auto& report = result.get<copier::Report>();
  switch (report.outcome) {
    case copier::Outcome::kDone:
      return nullptr;
    case copier::Outcome::kTooLarge:
      return tooLarge(report.bound, bounds);
    case copier::Outcome::kNoSpace:
      return notWritten("it could not be written", report.error);
    case copier::Outcome::kChanged:
      return failure(rpc::Reason::SNAPSHOT_FAILED, "its files changed while they were copied",
                     report.error);
    case copier::Outcome::kDamaged:
    case copier::Outcome::kFailed:
      break;
  }
  return failure(rpc::Reason::SNAPSHOT_FAILED, "its files could not be copied", report.error);
}

kj::Maybe<Failure> whyNotRestored(const runtimes::CopyResult& result) {
  if (result.is<runtimes::CreateFailure>()) {
    auto& why = result.get<runtimes::CreateFailure>();
    return failure(rpc::Reason::SNAPSHOT_FAILED, why.detail, why.error);
  }
  auto& report = result.get<copier::Report>();
  switch (report.outcome) {
    case copier::Outcome::kDone:
      return nullptr;
    case copier::Outcome::kNoSpace:
      return failure(rpc::Reason::SNAPSHOT_DOES_NOT_FIT,
                     "the new sandbox's limits are too small for the snapshot", report.error);
    case copier::Outcome::kDamaged:
    case copier::Outcome::kTooLarge:
      return failure(rpc::Reason::SNAPSHOT_DAMAGED, "its content is not what was written",
                     report.error);
    case copier::Outcome::kChanged:
    case copier::Outcome::kFailed:
      break;
  }
  return failure(rpc::Reason::SNAPSHOT_FAILED, "its files could not be put back", report.error);
}
}  // namespace

// One snapshot being taken. Ends it when it goes.
class Snapshots::Job {
 public:
  Job(Snapshots& owner, Sandbox& sandbox, kj::Own<kj::PromiseFulfiller<Result>> answer)
      : owner_(owner),
        sandbox_(sandbox),
        answer_(kj::mv(answer)),
        place_(kj::heap<SnapshotStore::Place>(owner.store_, sandbox.entry.ownerUid)) {
    ++owner_.beingMade_;
    sandbox_.snapshotBusy = true;
  }

  ~Job() noexcept(false) {
    thaw();
    sandbox_.snapshotBusy = false;
    --owner_.beingMade_;
    discardDraft();
    answer(failure(rpc::Reason::SANDBOX_GONE, "the sandbox was destroyed meanwhile"));
  }
  KJ_DISALLOW_COPY(Job);

  kj::Promise<void> run() {
    return freeze()
        .then([this](kj::Maybe<Failure>&& failed) -> kj::Promise<kj::Maybe<Failure>> {
          times_.done("freeze");
          if (failed != nullptr) return kj::mv(failed);
          return copy();
        })
        .catch_([](kj::Exception&& exception) -> kj::Maybe<Failure> {
          return fault("snapshot", exception);
        })
        .then([this](kj::Maybe<Failure>&& failed) {
          KJ_IF_MAYBE (why, failed) {
            spdlog::warn("{}: no snapshot, owner {}: {} {} (errno {}); ms: {}", sandbox_.name(),
                         sandbox_.entry.ownerUid, why->subject, why->detail, why->error,
                         times_.text());
            answer(kj::mv(*why));
          }
        });
  }

 private:
  // Once: what comes later is not heard.
  void answer(Failure why) {
    thaw();
    if (answer_.get() != nullptr && answer_->isWaiting()) answer_->fulfill(kj::mv(why));
  }

  SandboxCgroups& cgroups() { return *KJ_ASSERT_NONNULL(sandbox_.cgroups); }

  kj::Promise<kj::Maybe<Failure>> freeze() {
    int error = cgroups().freeze();
    if (error == ENOTSUP || error == ENOENT) {
      return kj::Maybe<Failure>(
          about("snapshot", failure(rpc::Reason::UNSUPPORTED,
                                    "this host has no cgroup freezer to stop the sandbox with")));
    }
    frozen_ = true;  // perhaps not wholly
    if (error != 0) {
      return kj::Maybe<Failure>(
          failure(rpc::Reason::SNAPSHOT_FAILED, "the sandbox could not be frozen", error));
    }
    return awaitFrozen(owner_.services_.timer.now() + kFreezes, 0);
  }

  kj::Promise<kj::Maybe<Failure>> awaitFrozen(kj::TimePoint until, unsigned pass) {
    auto turn = owner_.services_.clock.turn("snapshot: freeze");
    if (cgroups().frozen()) return kj::Maybe<Failure>(nullptr);
    if (owner_.services_.timer.now() >= until) {
      return kj::Maybe<Failure>(
          failure(rpc::Reason::SNAPSHOT_FAILED, "the sandbox did not freeze in time"));
    }
    return owner_.services_.timer.afterDelay((1 << std::min(pass, 4u)) * kj::MILLISECONDS)
        .then([this, until, pass]() { return awaitFrozen(until, pass + 1); });
  }

  void thaw() {
    if (!frozen_) return;
    frozen_ = false;
    KJ_IF_MAYBE (cgroups, sandbox_.cgroups) {
      if (int error = (*cgroups)->thaw()) {
        spdlog::error("{}: could not be thawed: {}", sandbox_.name(), strerror(error));
      }
    }
  }

  kj::Promise<kj::Maybe<Failure>> copy() {
    auto turn = owner_.services_.clock.turn("snapshot: start");
    auto begun = owner_.store_.begin(newName());
    if (begun.is<int>()) {
      return kj::Maybe<Failure>(notWritten("no file for the snapshot", begun.get<int>()));
    }
    draft_ = kj::mv(begun.get<kj::Own<SnapshotStore::Draft>>());
    auto made = cgroups().createHelper(HelperPlace::kBeside);
    if (made.is<LimitNotApplied>()) {
      return kj::Maybe<Failure>(failure(rpc::Reason::SNAPSHOT_FAILED, "no cgroup for the copier",
                                        made.get<LimitNotApplied>().error));
    }
    group_ = kj::mv(made.get<kj::Own<HelperGroup>>());
    bounds_ = boundsFor(sandbox_.spec.limits, owner_.store_.roomFor(sandbox_.entry.ownerUid));

    runtimes::CopyRequest request;
    request.name = sandbox_.name();
    request.image = sandbox_.image.get();
    request.ids = sandbox_.ids();
    request.layers = &sandbox_.layers;
    request.cgroups = &cgroups();
    request.group = group_.get();
    request.archive = KJ_ASSERT_NONNULL(draft_)->archive();
    request.job.task = copier::Task::kSave;
    request.job.bounds = bounds_;
    request.timeout = kCopies;
    return sandbox_.runtime->snapshot(kj::mv(request)).then([this](runtimes::CopyResult&& result) {
      // First: the program has waited long enough.
      thaw();
      times_.done("copy");
      auto held = kj::heap<runtimes::CopyResult>(kj::mv(result));
      auto& copied = *held;
      return owner_.removeGroup(*group_)
          .then([this, &copied](kj::Maybe<Failure>&& failed) -> kj::Maybe<Failure> {
            if (failed == nullptr) failed = whyNotSaved(copied, bounds_);
            if (failed == nullptr) failed = publish(copied.get<copier::Report>());
            return kj::mv(failed);
          })
          .attach(kj::mv(held));
    });
  }

  std::string newName() const {
    std::string name;
    do {
      name = newSnapshotName();
    } while (owner_.store_.contains(name));
    return name;
  }

  // Null: it is on its way, and no longer the sandbox's matter.
  kj::Maybe<Failure> publish(const copier::Report& report) {
    // The copier's numbers are its claim; what the owner is charged with is the file.
    struct stat file = {};
    if (fstat(KJ_ASSERT_NONNULL(draft_)->archive(), &file) < 0 ||
        static_cast<uint64_t>(file.st_size) != report.archiveBytes) {
      return failure(rpc::Reason::SNAPSHOT_FAILED, "the copier's numbers are not the file's");
    }
    auto& entry = sandbox_.entry;
    auto& record = taken_.record;
    record.machine = thisMachine();
    record.format = copier::kFormat;
    record.name = KJ_ASSERT_NONNULL(draft_)->name();
    record.ownerUid = entry.ownerUid;
    taken_.token = newToken();
    record.tokenHash = hashToken(taken_.token);
    record.sandbox = entry.name;
    record.runtime = entry.runtime;
    record.image = entry.image;
    record.imageIdentity = sandbox_.image == nullptr ? "" : sandbox_.image->identity;
    record.seccomp = sandbox_.profile == nullptr ? "" : sandbox_.profile->name;
    record.createdUnixMs = unixMs();
    record.limits = sandbox_.spec.limits;
    record.archiveBytes = report.archiveBytes;
    record.sha256 = hex(report.sha256);
    record.dataBytes = report.dataBytes;
    record.logicalBytes = report.logicalBytes;
    record.entries = report.entries;
    record.skippedSockets = report.skippedSockets;
    record.skippedDevices = report.skippedDevices;
    record.withoutXattrs = report.withoutXattrs;
    // Others may have come since.
    if (record.archiveBytes > owner_.store_.roomFor(entry.ownerUid)) {
      return tooLarge(copier::Bound::kBytes, bounds_);
    }
    place_->bytes = record.archiveBytes;
    // The thread's own, whoever goes first.
    struct Commit {
      kj::Own<SnapshotStore::Draft> draft;
      kj::Array<kj::byte> meta;
      int error = 0;
    };
    auto commit = std::make_shared<Commit>();
    commit->draft = kj::mv(KJ_ASSERT_NONNULL(draft_));
    commit->meta = encodeSnapshot(record);
    draft_ = nullptr;
    auto written = offLoop([commit]() { commit->error = commit->draft->commit(commit->meta); });
    owner_.tasks_.add(written.then([&owner = owner_, commit, answer = kj::mv(answer_),
                                    taken = kj::mv(taken_), place = kj::mv(place_),
                                    times = times_]() mutable {
      times.done("publish");
      place = nullptr;
      auto& made = taken.record;
      if (commit->error != 0) {
        spdlog::error("{}: no snapshot: {}", made.sandbox, strerror(commit->error));
        return answer->fulfill(notWritten("it could not be brought to the disk", commit->error));
      }
      spdlog::info("{}: snapshot {}, owner {}, {} entries, {} bytes; ms: {}", made.sandbox,
                   made.name, made.ownerUid, made.entries, made.archiveBytes, times.text());
      owner.store_.add(made);
      // Whoever asked has gone: nobody would ever hear its token.
      if (!answer->isWaiting()) return owner.discard(made.name);
      answer->fulfill(kj::mv(taken));
    }));
    return nullptr;
  }

  void discardDraft() {
    KJ_IF_MAYBE (draft, draft_) {
      // A large file takes its time to go.
      offLoop([gone = kj::mv(*draft)]() mutable { gone = nullptr; }).detach([](kj::Exception&&) {});
      draft_ = nullptr;
    }
  }

  Snapshots& owner_;
  Sandbox& sandbox_;
  kj::Own<kj::PromiseFulfiller<Result>> answer_;
  kj::Own<SnapshotStore::Place> place_;
  bool frozen_ = false;
  kj::Own<HelperGroup> group_;
  kj::Maybe<kj::Own<SnapshotStore::Draft>> draft_;
  copier::Bounds bounds_ = {};
  Taken taken_;
  StepTimes times_;
};

Snapshots::Snapshots(Services& services, SnapshotStore& store)
    : services_(services), store_(store), tasks_(*this) {}

kj::Maybe<Failure> Snapshots::admit(uint32_t owner) const {
  auto& caps = store_.caps();
  bool own = store_.countOf(owner) >= caps.countPerOwner;
  if (own || store_.countOf(nullptr) >= caps.count) {
    auto full = failure(rpc::Reason::TOO_MANY_SNAPSHOTS,
                        own ? "you have too many snapshots" : "this host has too many snapshots");
    full.limit = own ? caps.countPerOwner : caps.count;
    return full;
  }
  if (beingMade_ >= kMostAtOnce) {
    return failure(rpc::Reason::SNAPSHOT_BUSY, "too many snapshots are being taken; try again");
  }
  return nullptr;
}

kj::Promise<kj::OneOf<Snapshots::Taken, Failure>> Snapshots::take(Sandbox& sandbox) {
  if (sandbox.gone || sandbox.entry.state != rpc::SandboxState::READY ||
      sandbox.initStatus() != nullptr) {
    return Result(
        failure(rpc::Reason::SANDBOX_GONE, "the sandbox has ended or is being destroyed"));
  }
  if (*sandbox.runtime->snapshotKind() == '\0' || sandbox.layers.empty()) {
    return Result(about("snapshot", failure(rpc::Reason::UNSUPPORTED,
                                            sandbox.entry.runtime + " has no snapshots here")));
  }
  if (sandbox.snapshotBusy) {
    return Result(failure(rpc::Reason::SNAPSHOT_BUSY, "one is being taken of this sandbox"));
  }
  KJ_IF_MAYBE (full, admit(sandbox.entry.ownerUid)) return Result(kj::mv(*full));

  auto paf = kj::newPromiseAndFulfiller<Result>();
  auto job = kj::heap<Job>(*this, sandbox, kj::mv(paf.fulfiller));
  auto& running = *job;
  // When it has ended, the job goes with the promise; not within itself.
  sandbox.snapshotting = kj::evalLater([&running]() { return running.run(); })
                             .attach(kj::mv(job))
                             .eagerlyEvaluate([this](kj::Exception&& e) { taskFailed(kj::mv(e)); });
  return kj::mv(paf.promise);
}

kj::OneOf<SnapshotRecord, Failure> Snapshots::find(uint32_t owner, const std::string& id) const {
  size_t dot = id.find('.');
  if (dot != std::string::npos) {
    auto found = store_.find(owner, id.substr(0, dot), hashToken(id.substr(dot + 1)));
    KJ_IF_MAYBE (record, found) return SnapshotRecord(*record);
  }
  return about("snapshot", failure(rpc::Reason::NO_SUCH_SNAPSHOT, "no such snapshot of yours"));
}

kj::Maybe<Failure> Snapshots::complete(rpc::SandboxSpec::Builder asked,
                                       const SnapshotRecord& snapshot) {
  auto differs = [](const char* subject, std::string detail) {
    return about(subject, failure(rpc::Reason::SNAPSHOT_MISMATCH, std::move(detail)));
  };
  if (snapshot.format != copier::kFormat) {
    return differs("snapshot", "the snapshot is of another version of cordon");
  }
  if (snapshot.machine != thisMachine()) {
    return differs("snapshot", "the snapshot is of another kind of machine");
  }
  auto other = [](kj::StringPtr said, const std::string& had) {
    return said.size() > 0 && said != had.c_str();
  };
  if (other(asked.asReader().getRuntime(), snapshot.runtime)) {
    return differs("runtime", "the snapshot is of another runtime: " + snapshot.runtime);
  }
  if (other(asked.asReader().getImage(), snapshot.image)) {
    return differs("image", "the snapshot is of another image: " + snapshot.image);
  }
  asked.setRuntime(snapshot.runtime);
  asked.setImage(snapshot.image);
  if (asked.getSeccomp().size() == 0) asked.setSeccomp(snapshot.seccomp);
  auto limits = asked.getLimits();
  auto& old = snapshot.limits;
  if (limits.getMemoryBytes() == 0) limits.setMemoryBytes(old.memoryBytes);
  if (limits.getPids() == 0) limits.setPids(old.pids);
  if (limits.getCpuMillis() == 0) limits.setCpuMillis(old.cpuMillis);
  if (limits.getCpuTimeMs() == 0) limits.setCpuTimeMs(old.cpuTimeMs);
  if (limits.getWallMs() == 0) limits.setWallMs(old.wallMs);
  if (limits.getFileSizeBytes() == 0) limits.setFileSizeBytes(old.fileSizeBytes);
  if (limits.getFiles() == 0) limits.setFiles(old.files);
  if (limits.getDiskBytes() == 0) limits.setDiskBytes(old.diskBytes);
  if (limits.getTmpBytes() == 0) limits.setTmpBytes(old.tmpBytes);
  if (limits.getShmBytes() == 0) limits.setShmBytes(old.shmBytes);
  if (limits.getOutputBytes() == 0) limits.setOutputBytes(old.outputBytes);
  if (limits.getRootBytes() == 0) limits.setRootBytes(old.rootBytes);
  return nullptr;
}

kj::Maybe<Failure> Snapshots::mismatch(const runtimes::Image& image,
                                       const SnapshotRecord& snapshot) {
  // Without a root of its own a snapshot has nothing of the image's.
  if (snapshot.limits.rootBytes == 0 || image.identity == snapshot.imageIdentity) return nullptr;
  return about("image", failure(rpc::Reason::SNAPSHOT_MISMATCH,
                                "the image was replaced since the snapshot was taken"));
}

kj::Promise<kj::Maybe<Failure>> Snapshots::restore(Sandbox& sandbox,
                                                   const SnapshotRecord& snapshot) {
  using Answer = kj::Maybe<Failure>;
  auto opened = store_.open(snapshot);
  if (opened.is<std::string>()) {
    return Answer(
        about("snapshot", failure(rpc::Reason::SNAPSHOT_DAMAGED, opened.get<std::string>())));
  }
  auto& cgroups = *KJ_ASSERT_NONNULL(sandbox.cgroups);
  auto made = cgroups.createHelper(HelperPlace::kInWork);
  if (made.is<LimitNotApplied>()) {
    return Answer(failure(rpc::Reason::SNAPSHOT_FAILED, "no cgroup for the copier",
                          made.get<LimitNotApplied>().error));
  }
  struct Work {
    kj::AutoCloseFd archive;
    kj::Own<HelperGroup> group;
    kj::Maybe<Failure> failed;
  };
  auto work = kj::heap<Work>();
  work->archive = kj::mv(opened.get<kj::AutoCloseFd>());
  work->group = kj::mv(made.get<kj::Own<HelperGroup>>());
  auto& w = *work;

  runtimes::CopyRequest request;
  request.name = sandbox.name();
  request.image = sandbox.image.get();
  request.ids = sandbox.ids();
  request.layers = &sandbox.layers;
  request.cgroups = &cgroups;
  request.group = w.group.get();
  request.archive = w.archive.get();
  request.timeout = kCopies;
  auto& job = request.job;
  job.task = copier::Task::kRestore;
  job.bounds = boundsFor(snapshot.limits, snapshot.archiveBytes);
  job.archiveBytes = snapshot.archiveBytes;
  unhex(snapshot.sha256, job.sha256);
  return sandbox.runtime->restore(kj::mv(request))
      .then([this, &w](runtimes::CopyResult&& result) {
        w.failed = whyNotRestored(result);
        return removeGroup(*w.group);
      })
      .then([&w](Answer&& notRemoved) -> Answer {
        if (w.failed == nullptr) return kj::mv(notRemoved);
        KJ_IF_MAYBE (why, w.failed) why->subject = "snapshot";
        return kj::mv(w.failed);
      })
      .attach(kj::mv(work));
}

// Empty by now; the kernel may say busy for a moment.
kj::Promise<kj::Maybe<Failure>> Snapshots::removeGroup(HelperGroup& group, unsigned attempts) {
  auto turn = services_.clock.turn("snapshot: cgroup");
  if (group.remove()) return kj::Maybe<Failure>(nullptr);
  if (attempts == 0) {
    return kj::Maybe<Failure>(
        failure(rpc::Reason::SNAPSHOT_FAILED, "the copier's cgroup could not be removed"));
  }
  return services_.timer.afterDelay(2 * kj::MILLISECONDS).then([this, &group, attempts]() {
    return removeGroup(group, attempts - 1);
  });
}

kj::Maybe<Failure> Snapshots::remove(uint32_t owner, const std::string& name,
                                     const std::string& token) {
  if (store_.find(owner, name, hashToken(token)) == nullptr) {
    return failure(rpc::Reason::NO_SUCH_SNAPSHOT, "no such snapshot of yours");
  }
  discard(name);
  return nullptr;
}

void Snapshots::discard(const std::string& name) {
  store_.forget(name);
  spdlog::info("snapshot {} removed", name);
  int copy;
  KJ_SYSCALL(copy = fcntl(store_.directory(), F_DUPFD_CLOEXEC, 3));
  tasks_.add(offLoop([store = kj::AutoCloseFd(copy)]() { SnapshotStore::purge(store); }));
}

void Snapshots::taskFailed(kj::Exception&& exception) {
  fault("snapshot", exception);
}

}  // namespace cordon::broker
