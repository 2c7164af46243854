// The real vm-agent in a real runc sandbox: what a workload is, seen from inside.
// Needs root. The figures: --gtest_also_run_disabled_tests --gtest_filter='*Cost*'.
#include <capnp/message.h>
#include <capnp/serialize.h>
#include <kj/debug.h>

#include <algorithm>
#include <cstdio>
#include <fstream>

#include "jailer/seccomp.h"
#include "runtimes/oci/runc_files.h"
#include "runtimes/oci/runc_fixture.h"
#include "runtimes/oci/runc_probe.h"
#include "vm_agent/test_agent.h"

namespace cordon::runtimes {
namespace {

using agent::testing::field;
using agent::testing::Outcome;
using agent::testing::Request;
using agent::testing::TestStream;

Request program(std::vector<std::string> argv) {
  Request request;
  request.argv = std::move(argv);
  return request;
}

class RuncAgent : public RuncFixture {
 protected:
  ~RuncAgent() noexcept override {}

  std::string agentProgram() const override { return CORDON_TEST_VM_AGENT; }

  void queueConfig() override {
    capnp::MallocMessageBuilder message;
    auto config = message.initRoot<guest::AgentConfig>();
    config.setJoin(cgroups_->mode() == broker::CgroupMode::kV2 ? guest::JoinMode::CGROUP_V2
                                                               : guest::JoinMode::CGROUP_V1);
    config.setSwitchUser(true);
    config.setDefaultUid(1000);
    config.setDefaultGid(1000);
    config.setAgentUid(65000);
    config.setWorkDir("/work");
    config.setMaxExecs(8);
    config.setFiles(limits_.files);
    config.setOutputBytes(1 << 20);
    auto words = capnp::messageToFlatArray(message);
    auto bytes = words.asBytes();
    send(ipc::ControlKind::kConfig, 0, {profile_.bpf.get()},
         std::string(reinterpret_cast<const char*>(bytes.begin()), bytes.size()));
  }

  Outcome run(TestStream& stream, const Request& request) {
    uint32_t number = ++lastExec_;
    leaves_.push_back(cgroups_->createExec(number));
    send(ipc::ControlKind::kExec, number, leaves_.back()->agentFds());
    stream.start(number, request);
    EXPECT_TRUE(stream.waitOver(number));
    return stream[number];
  }

  void end() {
    destroy();
    leaves_.clear();
  }

  jailer::CompiledProfile profile_ = jailer::compileProfile("default");
  std::vector<kj::Own<broker::ExecLeaf>> leaves_;
  uint32_t lastExec_ = 0;
};

TEST_F(RuncAgent, WorkloadSeenFromInside) {
  start();
  TestStream stream(openStream());
  ASSERT_TRUE(stream.waitHello());

  Outcome status = run(stream, program({"cat", "/proc/self/status"}));
  ASSERT_EQ(status.code, 0u);
  EXPECT_EQ(field(status.text(), "Uid"), "1000\t1000\t1000\t1000");
  EXPECT_EQ(field(status.text(), "Gid"), "1000\t1000\t1000\t1000");
  for (const char* set : {"CapInh", "CapPrm", "CapEff", "CapAmb"}) {
    EXPECT_EQ(field(status.text(), set), "0000000000000000") << set;
  }
  // Lowering the bounding set takes CAP_SETPCAP, which the agent hasn't; with
  // no_new_privs nothing can be gained from it.
  EXPECT_EQ(field(status.text(), "CapBnd"), "00000000000000e0");
  EXPECT_EQ(field(status.text(), "NoNewPrivs"), "1");
  EXPECT_EQ(field(status.text(), "Seccomp"), "2");
  EXPECT_EQ(field(status.text(), "Seccomp_filters"), "2");

  Outcome cgroup = run(stream, program({"cat", "/proc/self/cgroup"}));
  EXPECT_NE(cgroup.text().find("work/exec-2"), std::string::npos) << cgroup.text();

  // The agent is out of reach.
  Outcome probing =
      run(stream, agent::testing::shell("cat /proc/1/environ; cat /proc/1/maps; ls /proc/1/fd; "
                                        "readlink /proc/1/exe; kill -9 1; kill -STOP 1; "
                                        "test -e /etc/shadow && echo shadow; grep '^Max core' "
                                        "/proc/self/limits | tr -s ' '; id -un"));
  EXPECT_EQ(probing.text(), "Max core file size 1 1 bytes \nuser\n") << probing.text(1);

  Outcome writing = run(
      stream, agent::testing::shell("touch /work/a /tmp/b /dev/shm/c && pwd && "
                                    "stat -c '%u %a' /work && df -B1 --output=size /work /tmp | "
                                    "tail -n2 | tr -d ' '"));
  EXPECT_EQ(writing.text(), "/work\n1000 1777\n8388608\n4194304\n") << writing.text(1);

  if (fs::exists("/usr/bin/python3")) {
    Outcome python =
        run(stream, program({"python3", "-c",
                             "import multiprocessing as m, ssl, sqlite3, json, tempfile\n"
                             "p = m.Pool(2)\n"
                             "print(sum(p.map(abs, range(-9, 1))))\n"
                             "tempfile.NamedTemporaryFile().write(b'x')"}));
    EXPECT_EQ(python.text(), "45\n") << python.text(1);
  }

  // Another user of the image, root included: still no capability.
  Request asRoot = agent::testing::shell("id -u; grep CapEff /proc/self/status");
  asRoot.user = "root";
  EXPECT_EQ(run(stream, asRoot).text(), "0\nCapEff:\t0000000000000000\n");
  end();
}

// Calls that another way in numbers differently: the filters of both stand.
TEST_F(RuncAgent, X32CallsKill) {
  if (!fs::exists("/usr/bin/python3")) GTEST_SKIP() << "needs python3 to make a raw call";
  start();
  TestStream stream(openStream());
  ASSERT_TRUE(stream.waitHello());
  Outcome x32 =
      run(stream,
          program({"python3", "-c", "import ctypes\nctypes.CDLL(None).syscall(0x40000000 | 39)"}));
  EXPECT_TRUE(x32.signaled);
  EXPECT_EQ(x32.code, static_cast<uint32_t>(SIGSYS));
  end();
}

double milliseconds(Clock::time_point since) {
  return std::chrono::duration<double, std::milli>(Clock::now() - since).count();
}

void print(const char* name, std::vector<double> values) {
  std::sort(values.begin(), values.end());
  std::printf("%-34s n=%zu p50 %.1f ms, p90 %.1f ms\n", name, values.size(),
              values[values.size() / 2], values[values.size() * 9 / 10]);
}

// runc by hand on the bundle that create() wrote: what it costs at the least.
class RawRunc {
 public:
  RawRunc(broker::Children& children, std::string directory, std::string config)
      : children_(children), directory_(std::move(directory)), config_(std::move(config)) {}

  kj::Own<broker::Child> start(kj::WaitScope& wait, int control) {
    writeRuncFiles(directory_, config_);
    std::string runc = runcUnderTest().empty() ? findRunc() : runcUnderTest();
    broker::SpawnSpec spec;
    spec.program = runc;
    spec.argv = {"runc",
                 "--root",
                 directory_ + "/state",
                 "run",
                 "--detach",
                 "--pid-file",
                 directory_ + "/init.pid",
                 "--bundle",
                 directory_ + "/bundle",
                 kSandbox};
    spec.env = {"PATH=/usr/sbin:/usr/bin:/sbin:/bin"};
    spec.fds = {{control, 0}};
    auto hold = children_.holdStrays();
    EXPECT_EQ(children_.spawn(spec)->onExit().wait(wait).code, 0);
    return KJ_ASSERT_NONNULL(children_.adopt(*readPidFile(directory_)));
  }

 private:
  broker::Children& children_;
  std::string directory_, config_;
};

std::string textOf(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Figures, not a check: create() to the first byte against runc itself to the
// same byte, by turns.
TEST_F(RuncAgent, DISABLED_CostOfCreate) {
  std::vector<double> created, greeted, ended, raw;
  for (int i = 0; i < 40; ++i) {
    auto begin = Clock::now();
    start();
    if (HasFatalFailure()) return;
    created.push_back(milliseconds(begin));
    {
      TestStream stream(openStream());
      ASSERT_TRUE(stream.waitHello());
    }
    greeted.push_back(milliseconds(begin));
    std::string config = textOf(directory_ + "/bundle/config.json");
    auto dying = Clock::now();
    end();
    removeCgroups();
    ended.push_back(milliseconds(dying));

    auto made = tree_->create(kSandbox, limits_, kFirstId + 65000);
    cgroups_ = kj::mv(made.get<kj::Own<broker::SandboxCgroups>>());
    auto sockets = ipc::socketPair(SOCK_SEQPACKET);
    control_ = kj::mv(sockets.a);
    queueConfig();
    begin = Clock::now();
    init_ = RawRunc(children_, directory_, config).start(wait_, sockets.b);
    sockets.b = nullptr;
    {
      TestStream stream(openStream());
      ASSERT_TRUE(stream.waitHello());
    }
    raw.push_back(milliseconds(begin));
    end();
    removeCgroups();
  }
  print("create", created);
  print("create to first byte", greeted);
  print("runc run --detach to first byte", raw);
  print("destroy", ended);
}

}  // namespace
}  // namespace cordon::runtimes
