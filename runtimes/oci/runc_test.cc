// Real runc, real cgroups, seen from inside by a program in the agent's place.
// Needs root. CORDON_TEST_RUNC names another runc than the installed one.
#include "runtimes/oci/runc.h"

#include <poll.h>
#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

#include "runtimes/inside_stream.h"
#include "runtimes/oci/runc_fixture.h"
#include "runtimes/oci/runc_probe.h"

namespace cordon::runtimes {
namespace {

class Runc : public RuncFixture {
 protected:
  ~Runc() noexcept override {}

  void change(CreateRequest& request) override {
    RuncFixture::change(request);
    request.willRestore = willRestore_;
  }

  Stream connect() { return Stream(openStream()); }

  std::string script(const std::string& text) {
    std::string path = root_ + "/fake-runc";
    std::ofstream(path) << "#!/bin/sh\n" << text << "\n";
    chmod(path.c_str(), 0755);
    return path;
  }

  void expectFailure(RuncOptions options, rpc::Reason reason, const std::string& detail) {
    Result result = create(options);
    if (!result.is<CreateFailure>()) {
      init_ = kj::mv(result.get<Started>().init);
      started_ = true;
      FAIL() << "it started";
    }
    EXPECT_EQ(result.get<CreateFailure>().reason, reason);
    EXPECT_NE(result.get<CreateFailure>().detail.find(detail), std::string::npos)
        << result.get<CreateFailure>().detail;
    EXPECT_TRUE(fs::is_empty(directory_)) << "files are left";
    EXPECT_TRUE(cgroups_->killPass()) << "processes are left";
    // What was killed may take a moment to be gone.
    char byte;
    EXPECT_TRUE(waitReadable(control_) && recv(control_, &byte, 1, MSG_DONTWAIT) == 0)
        << "somebody holds the control socket";
  }

  // Whoever is first sees it: create, or who waits for the init.
  void expectEndAtOnce() {
    Result result = create({runcUnderTest()});
    if (result.is<Started>()) {
      init_ = kj::mv(result.get<Started>().init);
      started_ = true;
      EXPECT_EQ(init_->onExit().wait(wait_).code, 1);
    } else {
      EXPECT_EQ(result.get<CreateFailure>().reason, rpc::Reason::RUNTIME_FAILED);
      EXPECT_TRUE(fs::is_empty(directory_)) << "files are left";
    }
  }

  bool willRestore_ = false;
};

// One sandbox, asked everything: creating one takes longer than all questions.
TEST_F(Runc, BoundarySeenFromInside) {
  start();
  Stream stream = connect();
  ASSERT_TRUE(stream.ready());
  std::string status = stream.ask("read /proc/self/status");

  // Identity and privileges.
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
  for (const char* map : {"uid_map", "gid_map"}) {
    std::istringstream words(stream.ask(std::string("read /proc/self/") + map));
    uint64_t inside = 1, outside = 0, count = 0;
    words >> inside >> outside >> count;
    EXPECT_EQ(inside, 0u);
    EXPECT_EQ(outside, kFirstId);
    EXPECT_EQ(count, 65536u);
  }

  // Namespaces: none is ours. Read from outside, where both can be seen.
  for (const char* ns : {"user", "pid", "mnt", "net", "ipc", "uts", "cgroup"}) {
    std::string theirs = linkText("/proc/" + std::to_string(init_->pid()) + "/ns/" + ns);
    EXPECT_NE(theirs, "") << ns;
    EXPECT_NE(theirs, linkText(std::string("/proc/self/ns/") + ns)) << ns;
  }
  EXPECT_EQ(stream.ask("net"), "lo up\n");
  EXPECT_EQ(stream.ask("read /proc/sys/kernel/hostname"), "inside\n");

  // Limits.
  std::string rlimits = stream.ask("read /proc/self/limits");
  rlimit core;
  getrlimit(RLIMIT_CORE, &core);
  std::string expectedCore = core.rlim_max >= 1 ? "1" : "0";
  for (const std::string& line : linesOf(rlimits)) {
    if (line.compare(0, 18, "Max core file size") != 0) continue;
    std::istringstream words(line.substr(18));
    std::string soft, hard;
    words >> soft >> hard;
    EXPECT_EQ(soft, expectedCore);
    EXPECT_EQ(hard, expectedCore);
  }

  // Files.
  EXPECT_EQ(stream.ask("read /etc/shadow"), "!" + std::to_string(ENOENT));
  EXPECT_EQ(stream.ask("list /root"), "!" + std::to_string(ENOENT));
  EXPECT_EQ(stream.ask("list /home"), "!" + std::to_string(ENOENT));
  EXPECT_EQ(stream.ask("list /sys/fs/cgroup"), ".\n..\n");
  for (const char* path : {"/new", "/etc/passwd", "/usr/new", "/.cordon/vm-agent", "/dev/new",
                           "/proc/sys/kernel/hostname", "/proc/sysrq-trigger", "/sys/new"}) {
    std::string answer = stream.ask(std::string("try ") + path);
    EXPECT_EQ(answer.substr(0, 1), "!") << path << " could be written";
  }
  for (const char* path : {"/tmp/new", "/work/new", "/dev/shm/new", "/dev/null"}) {
    EXPECT_EQ(stream.ask(std::string("try ") + path), "ok") << path;
  }
  for (const char* path : {"/proc/kcore", "/proc/keys", "/proc/timer_list"}) {
    std::string answer = stream.ask(std::string("read ") + path);
    EXPECT_TRUE(answer.empty() || answer == "!" + std::to_string(ENOENT)) << path << " " << answer;
  }
  auto devices = linesOf(stream.ask("list /dev"));
  std::sort(devices.begin(), devices.end());
  // A dangling link, made where the host has /proc/kcore.
  devices.erase(std::remove(devices.begin(), devices.end(), "core"), devices.end());
  EXPECT_EQ(devices, (std::vector<std::string>{".", "..", "fd", "full", "null", "ptmx", "pts",
                                               "random", "shm", "stderr", "stdin", "stdout", "tty",
                                               "urandom", "zero"}));

  // Inherited descriptors: control socket, output twice, and the stream's own two.
  auto fds = linesOf(stream.ask("list /proc/self/fd"));
  for (const std::string& fd : fds) {
    if (fd == "." || fd == "..") continue;
    std::string target = stream.ask("link /proc/self/fd/" + fd);
    bool known = target.compare(0, 7, "socket:") == 0 ||
                 target.compare(0, 19, "/memfd:runc-output ") == 0 ||
                 target == "!" + std::to_string(ENOENT);  // the listing's own
    EXPECT_TRUE(known) << fd << " is " << target;
  }

  // Mounts.
  auto mounts = mountsOf(stream.ask("read /proc/self/mountinfo"));
  EXPECT_GT(mounts.size(), 10u);
  for (const MountLine& mount : mounts) {
    // The six devices and the terminals are what they are.
    bool device = mount.type == "devtmpfs" || mount.type == "devpts";
    // What runc masks with: /dev/null over a file, an empty read-only tmpfs over a directory.
    bool below =
        mount.point.compare(0, 6, "/proc/") == 0 || mount.point.compare(0, 5, "/sys/") == 0;
    bool mask = below && mount.type == "tmpfs" && mount.has("ro");
    if (!device && !mask) {
      EXPECT_TRUE(mount.has("nodev")) << mount.point << " " << mount.options;
      EXPECT_TRUE(mount.has("nosuid")) << mount.point << " " << mount.options;
    }
    static const std::set<std::string> kWritable = {"/proc", "/tmp", "/work", "/dev/shm"};
    if (!device) {
      EXPECT_EQ(mount.has("rw"), kWritable.count(mount.point) == 1)
          << mount.point << " " << mount.options;
    }
  }

  destroy();
}

TEST_F(Runc, LayersAreForReadingUnlessOneIsRestored) {
  for (bool restoring : {false, true}) {
    willRestore_ = restoring;
    start();
    if (HasFatalFailure()) return;
    Stream stream = connect();
    ASSERT_TRUE(stream.ready());
    // The root that runc was given has been taken off.
    EXPECT_FALSE(fs::exists(directory_ + "/root"));
    ASSERT_EQ(layers_.size(), 2u);
    EXPECT_EQ(stream.ask("try /work/inside"), "ok");
    EXPECT_EQ(stream.ask("try /tmp/inside"), "ok");
    for (auto& layer : layers_) expectLayer(layer, restoring, "inside");
    std::string seen = stream.ask("list /work");
    EXPECT_EQ(seen.find("from-outside") != std::string::npos, restoring) << seen;
    destroy();
    removeCgroups();
  }
}

// The kernel's word on which cgroup the init is in, and its limits.
TEST_F(Runc, LimitsOfTheAgentStayTheBrokers) {
  start();
  std::string cgroup = fileText("/proc/" + std::to_string(init_->pid()) + "/cgroup");
  EXPECT_NE(cgroup.find(cgroups_->path() + "/agent"), std::string::npos) << cgroup;
  if (tree_->mode() == broker::CgroupMode::kV1) {
    std::string memory = "/sys/fs/cgroup/memory" + cgroups_->path();
    EXPECT_EQ(fileText(memory + "/work/memory.limit_in_bytes"), "67108864\n");
    EXPECT_EQ(fileText(memory + "/agent/memory.limit_in_bytes"), std::to_string(192 << 20) + "\n");
    EXPECT_EQ(fileText("/sys/fs/cgroup/cpu" + cgroups_->path() + "/agent/cpu.shares"), "2048\n");
  }
  destroy();
}

// EOF on the control socket ends the init; its status is the kernel's.
TEST_F(Runc, InitsEndIsSeen) {
  start();
  control_ = nullptr;
  auto status = init_->onExit().wait(wait_);
  EXPECT_FALSE(status.signaled);
  EXPECT_EQ(status.code, 0);
  destroy();
}

TEST_F(Runc, SeveralInARowLeaveNothing) {
  for (int i = 0; i < 5; ++i) {
    start();
    if (HasFatalFailure()) return;
    EXPECT_TRUE(connect().ready());
    destroy();
    removeCgroups();
  }
}

TEST_F(Runc, FailingRunc) {
  expectFailure({script("echo secret >&2; exit 3")}, rpc::Reason::RUNTIME_FAILED,
                "runc exited with status 3");
}

TEST_F(Runc, KilledRunc) {
  expectFailure({script("kill -9 $$")}, rpc::Reason::RUNTIME_FAILED, "was killed by signal 9");
}

TEST_F(Runc, MissingRunc) {
  expectFailure({root_ + "/no-such-runc"}, rpc::Reason::RUNTIME_FAILED, "could not be started");
}

TEST_F(Runc, HangingRunc) {
  auto begin = Clock::now();
  expectFailure({script("sleep 1000 & sleep 1000"), 300 * kj::MILLISECONDS},
                rpc::Reason::RUNTIME_TIMEOUT, "did not finish within 300 ms");
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(15));
}

// Through the real runc, but with an agent that can't be run.
TEST_F(Runc, AgentThatIsNoProgram) {
  std::ofstream(root_ + "/text") << "no program";
  useAgent(root_ + "/text");
  expectEndAtOnce();
}

TEST_F(Runc, AgentThatEndsAtOnce) {
  useAgent("/bin/false");
  expectEndAtOnce();
}

TEST_F(Runc, PidFileOfAStranger) {
  expectFailure({script("for a; do case $last in --pid-file) echo 1 > $a;; esac; last=$a; done")},
                rpc::Reason::RUNTIME_FAILED, "left no pid");
  removeCgroups();
  runtime_ = nullptr;
  expectFailure({script("for a; do case $last in --pid-file) echo " + std::to_string(getpid()) +
                        " > $a;; esac; last=$a; done")},
                rpc::Reason::RUNTIME_FAILED, "no child of ours");
}

TEST_F(Runc, WhatAKilledRuncLeavesMountedGoes) {
  expectFailure({script("for a; do case $last in --root) root=$a;; esac; last=$a; done\n"
                        "mkdir $root/x && touch $root/x/runc.a && "
                        "mount --bind /bin/true $root/x/runc.a && exit 7")},
                rpc::Reason::RUNTIME_FAILED, "exited with status 7");
}

// A runc that leaves a process which is ours by now, but in no cgroup of ours.
TEST_F(Runc, InitOutsideItsCgroup) {
  expectFailure({script("for a; do case $last in --pid-file) pid=$a;; esac; last=$a; done\n"
                        "sleep 1000 <&- >&- 2>&- & echo $! > $pid")},
                rpc::Reason::RUNTIME_FAILED, "outside the sandbox's cgroup");
}

TEST_F(Runc, ACoreIsItsOwnOrThereIsNoSandbox) {
  ownCore_ = true;
  expectOwnCore("could not be started");
}

TEST_F(Runc, Probe) {
  auto probe = [&](const std::string& runc) {
    return probeRunc(children_, port_.getTimer(), *tree_, runc).wait(wait_);
  };
  runtimes::Probe good =
      makeRuncRuntime(children_, port_.getTimer(), *tree_, {runcUnderTest()})->probe().wait(wait_);
  EXPECT_TRUE(good.available) << good.reason;
  EXPECT_FALSE(good.version.empty());

  runtimes::Probe old =
      probe(script("echo runc version 1.1.5+ds1; echo 'commit: 1.1.5+ds1-1+deb12u1'"));
  EXPECT_TRUE(old.available) << old.reason;
  EXPECT_EQ(old.notes.size(), 5u);

  for (const std::string& runc : {std::string(), root_ + "/none", std::string("/etc"),
                                  script("echo something else"), script("exit 1")}) {
    runtimes::Probe bad = probe(runc);
    EXPECT_FALSE(bad.available) << runc;
    EXPECT_NE(bad.reason, "");
    EXPECT_NE(bad.fix, "");
  }
  std::string loose = script("echo runc version 1.3.6");
  chmod(loose.c_str(), 0777);
  EXPECT_NE(probe(loose).reason.find("replaced by others"), std::string::npos);

  // Its own mode is no help when its directory is somebody else's.
  std::filesystem::create_directory(root_ + "/theirs");
  std::filesystem::copy_file(script("echo runc version 1.3.6"), root_ + "/theirs/runc");
  EXPECT_TRUE(probe(root_ + "/theirs/runc").available);
  ASSERT_EQ(chown((root_ + "/theirs").c_str(), 1000, 1000), 0);
  EXPECT_NE(probe(root_ + "/theirs/runc").reason.find("/theirs"), std::string::npos);
}

}  // namespace
}  // namespace cordon::runtimes
