#include "runtimes/images.h"

#include <errno.h>
#include <fcntl.h>
#include <kj/debug.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "runtimes/directory_image.h"
#include "runtimes/host_usr.h"
#include "runtimes/image_walk.h"
#include "runtimes/skeleton.h"

namespace cordon::runtimes {

namespace {

constexpr char kHostUsr[] = "host-usr";
constexpr size_t kMostRemembered = 32;
// Each is a mount of its own in a sandbox.
constexpr unsigned kMostClosed = 48;

using Resolved = kj::OneOf<std::shared_ptr<const Image>, ImageRefusal>;

// An image and the mounts that it consists of, which go with its last user.
struct BuiltImage : Image {
  kj::Own<Skeleton> skeleton;
};

struct Remembered {
  uint64_t device = 0, inode = 0;
  int64_t ctimeSeconds = 0, ctimeNanoseconds = 0;
  uint64_t lastUsed = 0;
  Resolved answer;

  bool isOf(const ImageDirectory& directory) const {
    return device == directory.device && inode == directory.inode &&
           ctimeSeconds == directory.ctimeSeconds && ctimeNanoseconds == directory.ctimeNanoseconds;
  }
};

Resolved copyOf(const Resolved& answer) {
  if (answer.is<ImageRefusal>()) return Resolved(ImageRefusal(answer.get<ImageRefusal>()));
  return Resolved(std::shared_ptr<const Image>(answer.get<std::shared_ptr<const Image>>()));
}

Resolved refusal(rpc::Reason reason, std::string detail) {
  return Resolved(ImageRefusal{reason, std::move(detail)});
}

std::string identityOf(const ImageDirectory& directory) {
  std::string text;
  for (auto part :
       {directory.device, directory.inode, static_cast<uint64_t>(directory.ctimeSeconds),
        static_cast<uint64_t>(directory.ctimeNanoseconds)}) {
    text += (text.empty() ? "" : ":") + std::to_string(part);
  }
  return text;
}

// Packages that come or go touch these directories.
std::string hostUsrIdentity() {
  std::string text;
  for (const char* path : {"/usr", "/usr/bin", "/usr/lib"}) {
    struct stat status = {};
    if (stat(path, &status) != 0) continue;
    text += (text.empty() ? "" : ":") + std::to_string(status.st_ino) + "." +
            std::to_string(status.st_mtim.tv_sec);
  }
  return text;
}

class ImageStoreImpl final : public ImageStore {
 public:
  ImageStoreImpl(const std::string& workDir, std::vector<std::string> imageDirs,
                 const std::string& vmAgent, kj::Timer& timer)
      : workDir_(workDir),
        imageDirs_(std::move(imageDirs)),
        vmAgent_(vmAgent),
        timer_(timer),
        root_(geteuid() == 0) {
    if (!root_) return;
    if (mkdir(workDir_.c_str(), 0711) != 0 && errno != EEXIST) {
      KJ_FAIL_SYSCALL("mkdir", errno, workDir_);
    }
    int raw;
    KJ_SYSCALL(raw = ::open(workDir_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC),
               workDir_);
    work_ = kj::AutoCloseFd(raw);
    struct stat status;
    KJ_SYSCALL(fstat(work_, &status));
    KJ_REQUIRE(isRootsAlone(status.st_uid, status.st_mode), "not root's alone", workDir_);
  }
  ~ImageStoreImpl() noexcept(false) override {}

  kj::Promise<Resolved> resolve(std::string name, bool own) override {
    if (!root_) return refusal(rpc::Reason::IMAGE_REFUSED, "images need a service run by root");
    if (name.empty() || name == kHostUsr) return own ? resolveOwnHostUsr() : resolveHostUsr();
    if (!isImageName(name)) {
      return refusal(rpc::Reason::UNKNOWN_IMAGE, "an image is named by a relative path without ..");
    }
    auto opened = openImageDirectory(imageDirs_, name);
    if (opened.is<ImageRefusal>()) return Resolved(kj::mv(opened.get<ImageRefusal>()));
    return resolveDirectory(std::move(name), kj::mv(opened.get<ImageDirectory>()));
  }

  void removeAll() override {
    hostUsr_ = nullptr;
    ownHostUsr_ = nullptr;
    remembered_.clear();
    // Whoever still has one of these keeps a path to nothing.
    for (const std::weak_ptr<BuiltImage>& weak : built_) {
      if (std::shared_ptr<BuiltImage> image = weak.lock()) image->skeleton = nullptr;
    }
    built_.clear();
  }

 private:
  kj::Promise<Resolved> resolveHostUsr() {
    KJ_IF_MAYBE (image, hostUsr_) return Resolved(std::shared_ptr<const Image>(*image));
    return build(
        kHostUsr, hostUsrIdentity(),
        [](Skeleton& skeleton, int agent) { buildHostUsr(skeleton, agent); },
        [this](std::shared_ptr<const Image> image) { hostUsr_ = kj::mv(image); });
  }

  kj::Promise<Resolved> resolveOwnHostUsr() {
    KJ_IF_MAYBE (image, ownHostUsr_) return Resolved(std::shared_ptr<const Image>(*image));
    return inTurn([this]() -> kj::Promise<Resolved> {
      KJ_IF_MAYBE (image, ownHostUsr_) return Resolved(std::shared_ptr<const Image>(*image));
      int raw = ::open("/usr", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
      if (raw < 0) return refusal(rpc::Reason::IMAGE_REFUSED, "/usr is no directory");
      WalkLimits limits;
      limits.closed = kMostClosed;
      auto usr = kj::heap<kj::AutoCloseFd>(raw);
      return walkImage(raw, false, timer_, limits)
          .attach(kj::mv(usr))
          .then([this](WalkResult walked) {
            if (!walked.refusal.empty()) {
              return refusal(rpc::Reason::IMAGE_REFUSED, "host-usr: /usr" + walked.refusal);
            }
            return build(
                kHostUsr, hostUsrIdentity(),
                [](Skeleton& skeleton, int agent) { buildHostUsr(skeleton, agent, true); },
                [this](std::shared_ptr<const Image> image) { ownHostUsr_ = kj::mv(image); },
                kj::mv(walked.closed));
          });
    });
  }

  kj::Promise<Resolved> resolveDirectory(std::string name, ImageDirectory directory) {
    KJ_IF_MAYBE (known, recall(name, directory)) return kj::mv(*known);
    return inTurn([this, name, directory = kj::mv(directory)]() mutable -> kj::Promise<Resolved> {
      // Somebody else may have asked for the same one.
      KJ_IF_MAYBE (known, recall(name, directory)) return kj::mv(*known);
      return walkAndBuild(name, kj::mv(directory));
    });
  }

  // One walk at a time, each of which gives the loop its turns: many at once
  // would each take theirs in the same pass over the timers.
  template <typename Walk>
  kj::Promise<Resolved> inTurn(Walk&& walk) {
    auto done = kj::newPromiseAndFulfiller<void>();
    auto before = kj::mv(lastWalk_);
    lastWalk_ = kj::mv(done.promise);
    // One that was given up, or failed, rejects: that is no reason not to walk.
    return before.catch_([](kj::Exception&&) {})
        .then(kj::fwd<Walk>(walk))
        .then([fulfiller = kj::mv(done.fulfiller)](Resolved&& answer) mutable {
          fulfiller->fulfill();
          return kj::mv(answer);
        })
        // Whenever its own caller looks: others wait for it.
        .eagerlyEvaluate(nullptr);
  }

  kj::Maybe<Resolved> recall(const std::string& name, const ImageDirectory& directory) {
    auto known = remembered_.find(name);
    if (known == remembered_.end() || !known->second.isOf(directory)) return nullptr;
    known->second.lastUsed = ++uses_;
    return copyOf(known->second.answer);
  }

  // A client can name any directory beneath the configured ones.
  void remember(const std::string& name, const ImageDirectory& directory, const Resolved& answer) {
    if (!directory.settled) return;
    if (remembered_.size() >= kMostRemembered && remembered_.count(name) == 0) {
      auto oldest = std::min_element(remembered_.begin(), remembered_.end(), [](auto& a, auto& b) {
        return a.second.lastUsed < b.second.lastUsed;
      });
      remembered_.erase(oldest);  // its mounts go with the last sandbox that uses them
    }
    remembered_[name] = {directory.device,           directory.inode, directory.ctimeSeconds,
                         directory.ctimeNanoseconds, ++uses_,         copyOf(answer)};
  }

  kj::Promise<Resolved> walkAndBuild(std::string name, ImageDirectory directory) {
    int root = directory.root.get();
    return walkImage(root, directory.strict, timer_)
        .then([this, name, directory = kj::mv(directory)](WalkResult walked) mutable {
          Resolved answer =
              walked.refusal.empty()
                  ? build(
                        name, identityOf(directory),
                        [&](Skeleton& skeleton, int agent) {
                          buildDirectoryImage(skeleton, directory.root, walked.top, agent);
                        },
                        [](std::shared_ptr<const Image>) {})
                  : refusal(rpc::Reason::IMAGE_REFUSED, name + walked.refusal);
          remember(name, directory, answer);
          return answer;
        });
  }

  template <typename Fill, typename Keep>
  Resolved build(const std::string& name, std::string identity, Fill&& fill, Keep&& keep,
                 std::vector<std::string> closedInUsr = {}) {
    auto image = std::make_shared<BuiltImage>();
    std::string why;
    kj::Maybe<kj::Exception> fault = kj::runCatchingExceptions([&]() {
      kj::AutoCloseFd agent;
      why = openAgent(agent);
      if (!why.empty()) return;
      image->skeleton = kj::heap<Skeleton>(work_, workDir_, "image-" + std::to_string(++count_));
      fill(*image->skeleton, agent);
    });
    KJ_IF_MAYBE (exception, fault) {
      KJ_LOG(ERROR, "an image could not be put together", name, *exception);
      why = "could not be put together";
    }
    if (!why.empty()) return refusal(rpc::Reason::IMAGE_REFUSED, name + ": " + why);
    image->name = name;
    image->identity = std::move(identity);
    image->rootfs = image->skeleton->path();
    image->mounts = image->skeleton->mounts();
    for (auto& path : closedInUsr) image->closed.push_back("usr/" + path);
    forgetDropped();
    built_.push_back(image);
    keep(image);
    return Resolved(std::shared_ptr<const Image>(kj::mv(image)));
  }

  // "" when it is one that mapped ids can run and that only root can write.
  std::string openAgent(kj::AutoCloseFd& agent) const {
    int raw = ::open(vmAgent_.c_str(), O_PATH | O_CLOEXEC);
    if (raw < 0) return "no vm-agent at " + vmAgent_ + ": " + strerror(errno);
    agent = kj::AutoCloseFd(raw);
    struct stat status;
    KJ_SYSCALL(fstat(agent, &status), vmAgent_);
    if (!S_ISREG(status.st_mode) || (status.st_mode & 001) == 0) {
      return "vm-agent at " + vmAgent_ + " can't be executed by everyone";
    }
    if (!isRootsAlone(status.st_uid, status.st_mode)) {
      return "vm-agent at " + vmAgent_ + " is not root's alone to write";
    }
    return "";
  }

  void forgetDropped() {
    std::vector<std::weak_ptr<BuiltImage>> alive;
    for (std::weak_ptr<BuiltImage>& weak : built_) {
      if (!weak.expired()) alive.push_back(weak);
    }
    built_ = std::move(alive);
  }

  std::string workDir_;
  std::vector<std::string> imageDirs_;
  std::string vmAgent_;
  kj::Timer& timer_;
  bool root_;
  kj::AutoCloseFd work_;
  uint64_t count_ = 0;
  uint64_t uses_ = 0;
  kj::Promise<void> lastWalk_ = kj::READY_NOW;
  kj::Maybe<std::shared_ptr<const Image>> hostUsr_;
  kj::Maybe<std::shared_ptr<const Image>> ownHostUsr_;
  std::map<std::string, Remembered> remembered_;
  std::vector<std::weak_ptr<BuiltImage>> built_;
};

}  // namespace

kj::Own<ImageStore> ImageStore::open(const std::string& workDir, std::vector<std::string> imageDirs,
                                     const std::string& vmAgent, kj::Timer& timer) {
  return kj::heap<ImageStoreImpl>(workDir, std::move(imageDirs), vmAgent, timer);
}

}  // namespace cordon::runtimes
