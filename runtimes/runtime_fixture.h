// A mount namespace, a cgroup tree, an image store and one sandbox at a time, with
// a check that nothing is left. Which runtime it is says makeRuntime().
#pragma once
#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <kj/async-unix.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "broker/core_scheduling.h"
#include "ipc/control.h"
#include "ipc/fdpass.h"
#include "runtimes/images.h"
#include "runtimes/runtime.h"

namespace cordon::runtimes {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr uint32_t kFirstId = 0x70000000 + 65536 * 1023;
constexpr char kSandbox[] = "sb-boxtest000";

class RuntimeFixture : public ::testing::Test {
 protected:
  ~RuntimeFixture() noexcept override {}

  // Called once per sandbox that create() is asked for while there is none.
  virtual kj::Own<Runtime> makeRuntime() = 0;

  // The program in the agent's place.
  virtual std::string agentProgram() const { return CORDON_TEST_INSIDE; }

  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "sandboxes need root";
    static const bool isolated =
        unshare(CLONE_NEWNS) == 0 && mount("", "/", nullptr, MS_REC | MS_SLAVE, nullptr) == 0;
    ASSERT_TRUE(isolated) << "no mount namespace: " << strerror(errno);
    broker::becomeSubreaper();
    char path[] = "/run/cordon-test-XXXXXX";
    root_ = mkdtemp(path);
    ASSERT_EQ(mount("tmpfs", path, "tmpfs", 0, "mode=711"), 0);
    agent_ = root_ + "/agent";
    useAgent(agentProgram());
    images_ = ImageStore::open(root_ + "/images", {}, agent_, port_.getTimer());
    tree_ = broker::CgroupTree::open("/cordon-test-" + std::to_string(getpid()), "test");
    ASSERT_NE(tree_->mode(), broker::CgroupMode::kNone) << tree_->whyNone();
    directory_ = root_ + "/" + kSandbox;
    ASSERT_EQ(mkdir(directory_.c_str(), 0711), 0);
    chmod(directory_.c_str(), 0711);
    limits_.memoryBytes = 64 << 20;
    limits_.pids = 32;
    limits_.cpuMillis = 1000;
    limits_.files = 256;
    limits_.diskBytes = 8 << 20;
    limits_.tmpBytes = 4 << 20;
    limits_.shmBytes = 2 << 20;
  }

  void TearDown() override {
    if (root_.empty()) return;
    if (started_) destroy();
    if (cgroups_.get() != nullptr) removeCgroups();
    if (images_.get() != nullptr) images_->removeAll();
    if (tree_.get() != nullptr) {
      EXPECT_TRUE(tree_->removeInstance()) << "cgroups are left";
    }
    expectNoChildren();
    umount2(root_.c_str(), MNT_DETACH);
    rmdir(root_.c_str());
  }

  void expectNoChildren() {
    auto deadline = Clock::now() + std::chrono::seconds(20);
    for (;;) {
      children_.reapStrays();
      siginfo_t info;
      if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) < 0 && errno == ECHILD) return;
      ASSERT_LT(Clock::now(), deadline) << "a process is left";
      usleep(1000);
    }
  }

  void useAgent(const std::string& program) {
    fs::remove(agent_);
    fs::copy_file(program, agent_);
    chmod(agent_.c_str(), 0555);
  }

  std::shared_ptr<const Image> image() {
    auto answer = images_->resolve("", false).wait(wait_);
    if (answer.is<ImageRefusal>()) {
      ADD_FAILURE() << answer.get<ImageRefusal>().detail;
      return nullptr;
    }
    return answer.get<std::shared_ptr<const Image>>();
  }

  using Result = kj::OneOf<Started, CreateFailure>;
  Result createSandbox() {
    if (runtime_.get() == nullptr) runtime_ = makeRuntime();
    auto made = tree_->create(kSandbox, limits_, kFirstId + 65000);
    if (made.is<broker::LimitNotApplied>()) {
      ADD_FAILURE() << made.get<broker::LimitNotApplied>().file;
      return CreateFailure{};
    }
    cgroups_ = kj::mv(made.get<kj::Own<broker::SandboxCgroups>>());
    image_ = image();
    auto sockets = ipc::socketPair(SOCK_SEQPACKET);
    control_ = kj::mv(sockets.a);
    queueConfig();
    CreateRequest request;
    request.name = kSandbox;
    request.hostname = "inside";
    request.directory = directory_;
    request.image = image_.get();
    request.limits = limits_;
    request.ids = {kFirstId, 65536};
    request.cgroups = cgroups_.get();
    request.control = kj::mv(sockets.b);
    change(request);
    return runtime_->create(kj::mv(request)).wait(wait_);
  }

  // For a test that asks for something else.
  virtual void change(CreateRequest&) {}

  void startSandbox() {
    Result result = createSandbox();
    if (result.is<CreateFailure>()) {
      FAIL() << result.get<CreateFailure>().detail;
    }
    init_ = kj::mv(result.get<Started>().init);
    layers_ = kj::mv(result.get<Started>().layers);
    started_ = true;
  }

  // A layer: of the same files as `path` inside, and no way out of it.
  void expectLayer(int layer, bool writable, const std::string& seenInside) {
    struct stat here = {}, above = {};
    ASSERT_EQ(fstatat(layer, ".", &here, 0), 0);
    ASSERT_EQ(fstatat(layer, "../../..", &above, 0), 0);
    EXPECT_EQ(here.st_ino, above.st_ino);
    EXPECT_EQ(openat(layer, "../../../../etc/passwd", O_RDONLY | O_CLOEXEC), -1);
    EXPECT_EQ(faccessat(layer, seenInside.c_str(), F_OK, 0), 0) << seenInside;
    kj::AutoCloseFd made(openat(layer, "from-outside", O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
    int error = errno;
    EXPECT_EQ(made.get() >= 0, writable);
    if (!writable) {
      EXPECT_EQ(error, EROFS);
    }
  }

  // For a request with ownCore. Where the kernel can, its init has the cookie that
  // was told, and nobody else; elsewhere it is refused, with this in the text.
  void expectOwnCore(const std::string& refusal) {
    Result result = createSandbox();
    auto why = broker::whyNoCoreScheduling();
    if (result.is<CreateFailure>()) {
      EXPECT_NE(why, "") << result.get<CreateFailure>().detail;
      EXPECT_NE(result.get<CreateFailure>().detail.find(refusal), std::string::npos)
          << result.get<CreateFailure>().detail;
      return;
    }
    auto& made = result.get<Started>();
    init_ = kj::mv(made.init);
    started_ = true;
    EXPECT_EQ(why, "") << "it started without";
    EXPECT_NE(made.core.value, 0u);
    unsigned long cookie = 0;
    EXPECT_EQ(prctl(PR_SCHED_CORE, PR_SCHED_CORE_GET, init_->pid(), 0, &cookie), 0);
    EXPECT_EQ(made.core.value, cookie);
    EXPECT_EQ(prctl(PR_SCHED_CORE, PR_SCHED_CORE_GET, 0, 0, &cookie), 0);
    EXPECT_EQ(cookie, 0u);
  }

  // What the broker sends before create().
  virtual void queueConfig() {}

  void send(ipc::ControlKind kind, uint32_t exec, const std::vector<int>& fds,
            const std::string& payload = "") {
    ipc::ControlHeader header = {kind, exec};
    std::string datagram(reinterpret_cast<const char*>(&header), sizeof header);
    datagram += payload;
    auto sent = ipc::sendWithFds(
        control_, kj::arrayPtr(reinterpret_cast<const kj::byte*>(datagram.data()), datagram.size()),
        kj::arrayPtr(fds.data(), fds.size()));
    EXPECT_EQ(sent, ipc::SendResult::kSent);
  }

  // Our end of a new stream.
  kj::AutoCloseFd openStream() {
    auto ends = ipc::socketPair(SOCK_STREAM);
    send(ipc::ControlKind::kStream, 0, {ends.b.get()});
    return kj::mv(ends.a);
  }

  void destroy() {
    init_->signal(SIGKILL);
    init_->onExit().wait(wait_);
    layers_.clear();
    started_ = false;
    auto left = runtime_->cleanup(kSandbox, directory_);
    EXPECT_TRUE(left.empty()) << left[0].name;
    EXPECT_TRUE(fs::is_empty(directory_)) << "files are left";
    EXPECT_TRUE(runtime_->cleanup(kSandbox, directory_).empty()) << "cleanup is not idempotent";
  }

  void removeCgroups() {
    auto deadline = Clock::now() + std::chrono::seconds(20);
    while (!cgroups_->killPass() || !cgroups_->removePass().empty()) {
      ASSERT_LT(Clock::now(), deadline) << "cgroups can't be removed";
      children_.reapStrays();
      usleep(1000);
    }
    cgroups_ = nullptr;
  }

  kj::UnixEventPort port_;
  kj::EventLoop loop_{port_};
  kj::WaitScope wait_{loop_};
  broker::Children children_{port_};
  std::string root_, agent_, directory_;
  broker::ResolvedLimits limits_;
  kj::Own<broker::CgroupTree> tree_;
  kj::Own<ImageStore> images_;
  std::shared_ptr<const Image> image_;
  kj::Own<Runtime> runtime_;
  kj::Own<broker::SandboxCgroups> cgroups_;
  kj::AutoCloseFd control_;
  kj::Own<broker::Child> init_;
  Layers layers_;
  bool started_ = false;
};

}  // namespace cordon::runtimes
