// The real cordon-jailer, seen from inside by a program in the agent's place;
// and jailers that fail, hang, lie or are not there. Needs root.
#include "runtimes/jail/jail.h"

#include <algorithm>
#include <fstream>
#include <map>

#include "jailer/report.h"
#include "jailer/seccomp.h"
#include "runtimes/inside_stream.h"
#include "runtimes/runtime_fixture.h"

namespace cordon::runtimes {
namespace {

class Jail : public RuntimeFixture {
 protected:
  ~Jail() noexcept override {}

  kj::Own<Runtime> makeRuntime() override {
    return makeJailRuntime(children_, port_.getTimer(), *tree_, options_);
  }

  void change(CreateRequest& request) override {
    if (change_) change_(request);
  }

  void SetUp() override {
    RuntimeFixture::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    options_ = {.jailer = CORDON_TEST_JAILER,
                .vmAgent = agent_,
                .filters = {filter_.bpf.get(), -1},
                .createTimeout = 20 * kj::SECONDS};
  }

  Stream connect() { return Stream(openStream()); }

  // A jailer: a shell script with the status socket as fd 4.
  void useScript(const std::string& text, kj::Duration timeout = 20 * kj::SECONDS) {
    options_.jailer = root_ + "/fake-jailer";
    options_.createTimeout = timeout;
    runtime_ = nullptr;
    std::ofstream(options_.jailer) << "#!/bin/sh\n" << text << "\n";
    chmod(options_.jailer.c_str(), 0755);
  }

  // A file with this record, for scripts.
  std::string recordFile(const jailer::Report& report) {
    std::string path = root_ + "/record-" + std::to_string(++records_);
    std::ofstream(path).write(reinterpret_cast<const char*>(&report), sizeof report);
    return path;
  }

  std::string bornFile(pid_t pid) {
    jailer::Report report;
    report.kind = jailer::Report::kBorn;
    report.pid = pid;
    return recordFile(report);
  }

  std::string failedFile(uint32_t step, int error, uint32_t detail = 0) {
    jailer::Report report;
    report.kind = jailer::Report::kFailed;
    report.step = step;
    report.error = error;
    report.detail = detail;
    return recordFile(report);
  }

  // A create that fails so, and leaves nothing.
  void expectFailure(rpc::Reason reason, const std::string& detail, int error = 0) {
    Result result = createSandbox();
    if (!result.is<CreateFailure>()) {
      init_ = kj::mv(result.get<Started>().init);
      started_ = true;
      FAIL() << "it started";
    }
    auto& why = result.get<CreateFailure>();
    EXPECT_EQ(why.reason, reason) << why.detail;
    EXPECT_NE(why.detail.find(detail), std::string::npos) << why.detail;
    EXPECT_EQ(why.error, error) << why.detail;
    expectNothing();
  }

  void expectNothing() {
    EXPECT_TRUE(fs::is_empty(directory_)) << "files are left";
    EXPECT_TRUE(cgroups_->killPass()) << "processes are left";
    expectNoChildren();
    // What was killed may take a moment to be gone.
    char byte;
    EXPECT_TRUE(waitReadable(control_) && recv(control_, &byte, 1, MSG_DONTWAIT) == 0)
        << "somebody holds the control socket";
    removeCgroups();
  }

  jailer::CompiledProfile filter_ = jailer::compileAgentProfile();
  JailOptions options_;
  std::function<void(CreateRequest&)> change_;
  int records_ = 0;
};

// ---- the real one

TEST_F(Jail, BoundarySeenFromInside) {
  startSandbox();
  if (HasFatalFailure()) return;
  Stream stream = connect();
  ASSERT_TRUE(stream.ready());
  std::string status = stream.ask("read /proc/self/status");
  constexpr char kThree[] = "00000000000000e0";  // KILL, SETGID, SETUID
  for (const char* set : {"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"}) {
    EXPECT_EQ(field(status, set), kThree) << set;
  }
  EXPECT_EQ(field(status, "Uid"), "65000\t65000\t65000\t65000");
  EXPECT_EQ(field(status, "Gid"), "65000\t65000\t65000\t65000");
  EXPECT_EQ(field(status, "Groups"), "");
  EXPECT_EQ(field(status, "NoNewPrivs"), "1");
  EXPECT_EQ(field(status, "Seccomp"), "2");
  EXPECT_EQ(field(status, "Pid"), "1");
  for (const char* ns : {"user", "pid", "mnt", "net", "ipc", "uts", "cgroup"}) {
    std::string theirs = linkText("/proc/" + std::to_string(init_->pid()) + "/ns/" + ns);
    EXPECT_NE(theirs, "") << ns;
    EXPECT_NE(theirs, linkText(std::string("/proc/self/ns/") + ns)) << ns;
  }
  EXPECT_EQ(stream.ask("net"), "lo up\n");
  EXPECT_EQ(stream.ask("read /proc/sys/kernel/hostname"), "inside\n");
  destroy();
}

// What the agent holds: its control socket, /dev/null twice, the stream and the
// listing itself; none of the jailer's.
TEST_F(Jail, NoDescriptorOfTheJailersComesInside) {
  startSandbox();
  if (HasFatalFailure()) return;
  Stream stream = connect();
  ASSERT_TRUE(stream.ready());
  std::map<std::string, int> held;
  std::string process = "/proc/" + std::to_string(init_->pid()) + "/fd";
  for (auto& entry : fs::directory_iterator(process)) {
    std::string target = linkText(entry.path());
    ++held[target.substr(0, target.find(':'))];
  }
  EXPECT_EQ(held, (std::map<std::string, int>{{"socket", 2}, {"/dev/null", 2}}));
  destroy();
}

// docs/jailer.md has this table.
TEST_F(Jail, TheMountsAreThose) {
  startSandbox();
  if (HasFatalFailure()) return;
  Stream stream = connect();
  ASSERT_TRUE(stream.ready());
  std::map<std::string, std::string> flags;
  for (auto& mount : mountsOf(stream.ask("read /proc/self/mountinfo"))) {
    EXPECT_EQ(flags.count(mount.point), 0u) << mount.point << " twice";
    flags[mount.point] = mount.options.substr(0, mount.options.rfind(",relatime"));
  }
  const std::map<std::string, std::string> kTable = {
      {"/", "ro,nosuid,nodev"},
      {"/usr", "ro,nosuid,nodev"},
      {"/.cordon/vm-agent", "ro,nosuid,nodev"},
      {"/proc", "rw,nosuid,nodev,noexec"},
      {"/proc/sys", "ro,nosuid,nodev,noexec"},
      {"/sys", "ro,nosuid,nodev,noexec"},
      {"/dev", "ro,nosuid,nodev,noexec"},
      {"/dev/null", "ro,nosuid,noexec"},
      {"/dev/tty", "ro,nosuid,noexec"},
      {"/dev/pts", "rw,nosuid,nodev,noexec"},
      {"/dev/shm", "rw,nosuid,nodev,noexec"},
      {"/tmp", "rw,nosuid,nodev"},
      {"/work", "rw,nosuid,nodev"},
  };
  for (auto& [point, expected] : kTable) EXPECT_EQ(flags[point], expected) << point;
  destroy();
}

TEST_F(Jail, LayersAreForReadingUnlessOneIsRestored) {
  for (bool restoring : {false, true}) {
    change_ = [&](CreateRequest& request) { request.willRestore = restoring; };
    startSandbox();
    if (HasFatalFailure()) return;
    Stream stream = connect();
    ASSERT_TRUE(stream.ready());
    ASSERT_EQ(layers_.size(), jailer::kReadOnlyRootLayers);
    EXPECT_EQ(stream.ask("try /work/inside"), "ok");
    EXPECT_EQ(stream.ask("try /tmp/inside"), "ok");
    for (auto& layer : layers_) expectLayer(layer, restoring, "inside");
    std::string seen = stream.ask("list /work");
    EXPECT_EQ(seen.find("from-outside") != std::string::npos, restoring) << seen;
    destroy();
    removeCgroups();
  }
}

TEST_F(Jail, InitsEndIsSeen) {
  startSandbox();
  if (HasFatalFailure()) return;
  control_ = nullptr;
  auto status = init_->onExit().wait(wait_);
  EXPECT_FALSE(status.signaled);
  EXPECT_EQ(status.code, 0);
  destroy();
}

TEST_F(Jail, SeveralInARowLeaveNothing) {
  for (int i = 0; i < 20; ++i) {
    startSandbox();
    if (HasFatalFailure()) return;
    EXPECT_TRUE(connect().ready());
    destroy();
    removeCgroups();
  }
}

// ---- the real one, at steps that can't be done

TEST_F(Jail, StepSpec) {
  change_ = [](CreateRequest& request) { request.hostname = "a name with spaces"; };
  expectFailure(rpc::Reason::RUNTIME_FAILED, "`spec`", EINVAL);
  change_ = [](CreateRequest& request) { request.ids.first = 1000; };
  expectFailure(rpc::Reason::RUNTIME_FAILED, "`spec`", EINVAL);
}

TEST_F(Jail, StepCgroup) {
  if (tree_->mode() != broker::CgroupMode::kV1) GTEST_SKIP() << "joins on v1 alone";
  change_ = [this](CreateRequest&) {
    // Room for nobody: who writes itself in is let in, and can make no child.
    std::ofstream("/sys/fs/cgroup/pids" + cgroups_->path() + "/agent/pids.max") << "1";
  };
  expectFailure(rpc::Reason::HOST_LIMIT, "`user namespace`", EAGAIN);
}

TEST_F(Jail, StepMounts) {
  Image bare;
  bare.name = "bare";
  bare.rootfs = root_ + "/bare";
  bare.mounts = {{}};  // itself
  change_ = [&](CreateRequest& request) { request.image = &bare; };
  ASSERT_EQ(mkdir(bare.rootfs.c_str(), 0755), 0);
  ASSERT_EQ(mount("tmpfs", bare.rootfs.c_str(), "tmpfs", 0, "mode=755"), 0);
  KJ_DEFER(umount2(bare.rootfs.c_str(), MNT_DETACH));
  expectFailure(rpc::Reason::RUNTIME_FAILED, "`mounts` (mount 0)", ENOENT);

  // Links where mounts go: never followed, not even within the image.
  ASSERT_EQ(mkdir((bare.rootfs + "/elsewhere").c_str(), 0755), 0);
  for (const char* target : {"elsewhere", "/elsewhere", "/", "..", "/tmp", "../../../../tmp"}) {
    std::string link = bare.rootfs + "/proc";
    unlink(link.c_str());
    ASSERT_EQ(symlink(target, link.c_str()), 0);
    expectFailure(rpc::Reason::RUNTIME_FAILED, "`mounts` (mount 0)", ELOOP);
  }
  // A file, a fifo, a socket and a device where a directory must be.
  for (mode_t type : {S_IFREG, S_IFIFO, S_IFSOCK, S_IFCHR}) {
    std::string path = bare.rootfs + "/proc";
    unlink(path.c_str());
    if (mknod(path.c_str(), type | 0644, 0x103) != 0) continue;  // no such right here
    expectFailure(rpc::Reason::RUNTIME_FAILED, "`mounts` (mount 0)", EINVAL);
  }
}

TEST_F(Jail, StepExec) {
  std::ofstream(root_ + "/text") << "no program";
  useAgent(root_ + "/text");
  expectFailure(rpc::Reason::RUNTIME_FAILED, "`exec`", ENOEXEC);
}

TEST_F(Jail, AgentThatEndsAtOnce) {
  useAgent("/bin/false");
  Result result = createSandbox();
  // Whoever is first sees it: create, or who waits for the init.
  if (result.is<Started>()) {
    init_ = kj::mv(result.get<Started>().init);
    started_ = true;
    EXPECT_NE(init_->onExit().wait(wait_).code, 0);
  } else {
    EXPECT_EQ(result.get<CreateFailure>().reason, rpc::Reason::RUNTIME_FAILED);
    expectNothing();
  }
}

// ---- others in its place

TEST_F(Jail, EveryStepIsNamedWithItsErrno) {
  for (uint32_t step = 1; step <= static_cast<uint32_t>(jailer::Step::kExec); ++step) {
    useScript("cat " + failedFile(step, ENOTTY, 7) + " >&4; exit 1");
    std::string name = jailer::stepName(static_cast<jailer::Step>(step));
    expectFailure(rpc::Reason::RUNTIME_FAILED, "`" + name + "`", ENOTTY);
  }
  useScript("cat " + failedFile(4711, -1, UINT32_MAX) + " >&4; exit 1");
  expectFailure(rpc::Reason::RUNTIME_FAILED, "`?`", -1);
}

TEST_F(Jail, WhatTheHostHasNoMoreOfIsItsLimit) {
  for (int error : {EAGAIN, EMFILE, ENFILE, ENOMEM, ENOSPC, EUSERS}) {
    useScript("cat " + failedFile(5, error) + " >&4; exit 1");
    expectFailure(rpc::Reason::HOST_LIMIT, "`namespaces`", error);
  }
}

TEST_F(Jail, ACoreIsItsOwnOrThereIsNoSandbox) {
  change_ = [](CreateRequest& request) { request.ownCore = true; };
  expectOwnCore("`limits`");
  if (!started_) expectNothing();
}

TEST_F(Jail, MissingJailer) {
  options_.jailer = root_ + "/no-such-jailer";
  expectFailure(rpc::Reason::RUNTIME_FAILED, "could not be started");
}

TEST_F(Jail, JailerThatSaysNothing) {
  for (const char* script : {"exit 0", "exit 3", "kill -9 $$"}) {
    useScript(script);
    expectFailure(rpc::Reason::RUNTIME_FAILED, "without a word");
  }
}

// In no cgroup of the sandbox: only its process group is known.
TEST_F(Jail, HangingJailer) {
  auto begin = Clock::now();
  useScript("sleep 1000 & sleep 1000", 300 * kj::MILLISECONDS);
  expectFailure(rpc::Reason::RUNTIME_TIMEOUT, "did not finish in time");
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(15));
}

// Neither read without end nor left running.
TEST_F(Jail, JailerThatWritesGarbage) {
  auto begin = Clock::now();
  std::string born = bornFile(1), failed = failedFile(1, 0);
  for (const std::string& script :
       {std::string("printf garbage >&4; exec sleep 1000"), std::string("exec cat /dev/zero >&4"),
        std::string("exec cat /dev/urandom >&4"),
        // Records, but more than there can be.
        "while :; do cat " + born + "; done >&4", "cat " + born + " " + born + " >&4; sleep 1000",
        "exec tail -c +2 " + born + " >&4"}) {
    useScript(script);
    expectFailure(rpc::Reason::RUNTIME_FAILED, "reports are none");
  }
  // A failure is believed, however often it is told.
  useScript("while :; do cat " + failed + "; done >&4");
  expectFailure(rpc::Reason::RUNTIME_FAILED, "`descriptors`");
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(60));
}

TEST_F(Jail, InitThatIsNoChildOfOurs) {
  for (pid_t pid : {1, 0, -1, INT32_MAX, INT32_MIN, getpid()}) {
    useScript("cat " + bornFile(pid) + " >&4");
    expectFailure(rpc::Reason::RUNTIME_FAILED, "no child of ours");
  }
}

TEST_F(Jail, Probe) {
  EXPECT_TRUE(makeRuntime()->probe().wait(wait_).available);
  options_.jailer = root_ + "/none";
  runtimes::Probe bad = makeRuntime()->probe().wait(wait_);
  EXPECT_FALSE(bad.available);
  EXPECT_NE(bad.reason.find("/none"), std::string::npos);
  EXPECT_NE(bad.fix, "");
}

}  // namespace
}  // namespace cordon::runtimes
