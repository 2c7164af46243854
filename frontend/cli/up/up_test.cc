#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "frontend/cli/failure.h"
#include "frontend/cli/up/notify.h"
#include "frontend/cli/up/part.h"
#include "frontend/cli/up/state_directory.h"
#include "frontend/cli/up/supervisor.h"

namespace cordon::up {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using cli::UsageError;

bool isRoot() {
  return geteuid() == 0;
}

class UpTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/cordon-up-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    base = name;
    ASSERT_EQ(chmod(name, 0755), 0);
  }
  void TearDown() override { fs::remove_all(base); }
  std::string state() const { return base / "state"; }

  fs::path base;
};

mode_t modeOf(const fs::path& path) {
  struct stat st {};
  EXPECT_EQ(lstat(path.c_str(), &st), 0) << path;
  return st.st_mode & 07777;
}

// ---- the state directory

TEST_F(UpTest, MakesTheDirectoryAndResolvesIt) {
  StateDirectory made(base.string() + "/./state", true);
  EXPECT_EQ(made.path(), state());
  EXPECT_EQ(modeOf(state()), 0711u);
}

TEST_F(UpTest, ADirectoryThatOthersCanWriteIsRefused) {
  fs::create_directory(state());
  for (mode_t mode : {0777u, 0730u, 0702u}) {
    ASSERT_EQ(chmod(state().c_str(), mode), 0);
    EXPECT_THROW(StateDirectory(state(), false), UsageError) << std::oct << mode;
  }
}

TEST_F(UpTest, ADirectoryOfSomebodyElseIsRefused) {
  if (!isRoot()) GTEST_SKIP() << "giving a directory away needs root";
  fs::create_directory(state());
  ASSERT_EQ(chown(state().c_str(), 12345, 12345), 0);
  EXPECT_THROW(StateDirectory(state(), false), UsageError);
}

TEST_F(UpTest, ASymlinkAndAFileAreRefused) {
  fs::create_directory(base / "real");
  fs::create_symlink(base / "real", state());
  EXPECT_THROW(StateDirectory(state(), false), UsageError);
  std::ofstream(base / "file").put('x');
  EXPECT_THROW(StateDirectory(base / "file", false), UsageError);
  EXPECT_THROW(StateDirectory("", false), UsageError);
  EXPECT_THROW(StateDirectory(base / "no/parent", false), UsageError);
}

TEST_F(UpTest, ASecondInstanceIsRefusedAndNamesTheFirst) {
  StateDirectory first(state(), false);
  try {
    StateDirectory second(state(), false);
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("pid " + std::to_string(getpid())), std::string::npos)
        << error.what();
  }
}

TEST_F(UpTest, AParentThatShutsTheFrontendsOutIsNamed) {
  fs::create_directory(base / "closed");
  ASSERT_EQ(chmod((base / "closed").c_str(), 0700), 0);
  try {
    StateDirectory inside(base / "closed/state", true);
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find(base / "closed"), std::string::npos) << error.what();
  }
  StateDirectory alone(base / "closed/state", false);
}

TEST_F(UpTest, ItsOwnDirectoryIsOpenedForTheFrontendsToPass) {
  fs::create_directory(state());
  ASSERT_EQ(chmod(state().c_str(), 0700), 0);
  { StateDirectory alone(state(), false); }
  EXPECT_EQ(modeOf(state()), 0700u);
  StateDirectory shared(state(), true);
  EXPECT_EQ(modeOf(state()), 0711u);
}

TEST_F(UpTest, SocketsHaveTheirModeAndReplaceStaleOnes) {
  StateDirectory directory(state(), false);
  { Fd stale = directory.listen("a.sock", 0660, gid_t(-1)); }
  Fd fresh = directory.listen("a.sock", 0600, gid_t(-1));
  EXPECT_EQ(modeOf(state() + "/a.sock"), 0600u);
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  strcpy(name.sun_path, (state() + "/a.sock").c_str());
  Fd client(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(connect(client.get(), reinterpret_cast<sockaddr*>(&name), sizeof(name)), 0);
  directory.remove("a.sock");
  directory.remove("a.sock");
  EXPECT_FALSE(fs::exists(state() + "/a.sock"));
}

TEST_F(UpTest, WhatIsNoSocketIsNotReplaced) {
  StateDirectory directory(state(), false);
  std::ofstream(state() + "/a.sock").put('x');
  EXPECT_THROW(directory.listen("a.sock", 0600, gid_t(-1)), UsageError);
  EXPECT_TRUE(fs::exists(state() + "/a.sock"));
}

TEST_F(UpTest, APathTooLongForASocketIsSaid) {
  std::string deep = base / std::string(100, 'd');
  StateDirectory directory(deep, false);
  EXPECT_THROW(directory.listen("a.sock", 0600, gid_t(-1)), UsageError);
}

TEST_F(UpTest, WaitsForAnEarlierBroker) {
  StateDirectory directory(state(), false);
  EXPECT_TRUE(directory.waitForEarlierBroker(1)) << "there was none";
  fs::create_directory(state() + "/broker");
  Fd lock(open((state() + "/broker/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_EQ(flock(lock.get(), LOCK_EX), 0);
  EXPECT_FALSE(directory.waitForEarlierBroker(1));
  std::thread ends([&] {
    std::this_thread::sleep_for(100ms);
    lock = Fd();
  });
  EXPECT_TRUE(directory.waitForEarlierBroker(20));
  ends.join();
}

// ---- notifications

TEST(Notification, IsReadyByAWholeLine) {
  auto ready = [](const char* text) {
    Notification notification;
    notification.text = text;
    return notification.ready();
  };
  EXPECT_TRUE(ready("READY=1"));
  EXPECT_TRUE(ready("READY=1\nSTATUS=x"));
  EXPECT_TRUE(ready("STATUS=x\nREADY=1"));
  EXPECT_TRUE(ready("A=b\nREADY=1\nC=d"));
  EXPECT_FALSE(ready("READY=10"));
  EXPECT_FALSE(ready("STATUS=READY=1"));
  EXPECT_FALSE(ready("XREADY=1\n"));
  EXPECT_FALSE(ready(""));
}

TEST_F(UpTest, NotificationsCarryTheirSenderAndNoDescriptors) {
  StateDirectory directory(state(), false);
  Fd socket = directory.datagrams("n.sock", 0600, gid_t(-1));
  EXPECT_FALSE(receive(socket.get()));
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  strcpy(name.sun_path, (state() + "/n.sock").c_str());
  Fd sender(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  char text[] = "READY=1";
  iovec vector{text, 7};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{&name, sizeof(name), &vector, 1, control, sizeof(control), 0};
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  memcpy(CMSG_DATA(header), &ends[1], sizeof(int));
  ASSERT_EQ(sendmsg(sender.get(), &message, 0), 7);
  close(ends[1]);
  auto got = receive(socket.get());
  ASSERT_TRUE(got);
  EXPECT_EQ(got->sender, getpid());
  EXPECT_TRUE(got->ready());
  // Had the descriptor been kept, the pipe would still have a writer.
  pollfd end{ends[0], POLLIN, 0};
  ASSERT_EQ(poll(&end, 1, 5000), 1);
  EXPECT_TRUE(end.revents & POLLHUP);
  close(ends[0]);
}

// ---- the whole

// `cordon up` in a process of its own, with doubles for its parts.
class Instance {
 public:
  Instance(fs::path directory, UpOptions options) : base(std::move(directory)) {
    fs::create_directories(base / "libexec");
    for (const char* name : {"cordon-broker", "cordon-agents"}) {
      fs::copy_file(UP_DOUBLE, base / "libexec" / name, fs::copy_options::overwrite_existing);
    }
    options.state = base / "state";
    options.libexec = base / "libexec";
    given = options;
  }
  ~Instance() {
    if (process <= 0) return;
    kill(process, SIGKILL);
    waitpid(process, nullptr, 0);
  }
  void behave(const char* part, const char* words) {
    std::ofstream(base / "libexec" / (std::string(part) + ".behaviour")) << words;
  }
  void launch() {
    fs::remove(base / "out");  // of the launch before
    process = fork();
    ASSERT_GE(process, 0);
    if (process > 0) return;
    int out = open((base / "out").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    int err = open((base / "err").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    dup2(out, 1);
    dup2(err, 2);
    int status = 99;
    try {
      status = serve(given);
    } catch (const std::exception& error) {
      fprintf(stderr, "thrown: %s\n", error.what());
    }
    fflush(stdout);
    _exit(status);
  }
  std::string read(const char* name) const {
    std::ifstream file(base / name);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  bool ready() const { return read("out") == "ready\n"; }
  // The last line that a double wrote at its start.
  std::string facts(const std::string& part) const {
    std::string all = read("err");
    size_t at = all.rfind("double name=" + part + " pid=");
    return at == std::string::npos ? "" : all.substr(at, all.find('\n', at) - at);
  }
  pid_t pidOf(const std::string& part) const {
    std::string line = facts(part);
    size_t at = line.find(" pid=");
    return at == std::string::npos ? 0 : pid_t(std::stol(line.substr(at + 5)));
  }
  template <class Condition>
  void await(Condition condition, const char* what) {
    auto deadline = std::chrono::steady_clock::now() + 60s;
    while (!condition()) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline) << what << "\n" << read("err");
      std::this_thread::sleep_for(5ms);
    }
  }
  int wait() {
    int status = 0;
    waitpid(process, &status, 0);
    process = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }
  int stop(int number = SIGTERM) {
    kill(process, number);
    return wait();
  }
  void killAlone() {
    kill(process, SIGKILL);
    wait();
  }

 private:
  fs::path base;
  UpOptions given;
  pid_t process = 0;
};

UpOptions private_() {
  UpOptions options;
  options.allowHostRuntime = true;
  return options;
}

// Or a zombie that nobody reaps.
bool gone(pid_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string text{std::istreambuf_iterator<char>(stat), {}};
  return text.empty() || text[text.rfind(')') + 2] == 'Z';
}

TEST_F(UpTest, WithoutRootTheHostRuntimeMustBeAllowed) {
  if (isRoot()) GTEST_SKIP() << "root has sandboxes";
  EXPECT_THROW(serve(UpOptions{}), UsageError);
}

TEST_F(UpTest, ServesAndEndsInOrder) {
  Instance instance(base, private_());
  instance.launch();
  instance.await([&] { return instance.ready(); }, "ready");
  EXPECT_NE(instance.read("err").find("ONE TRUST ZONE"), std::string::npos);
  EXPECT_EQ(modeOf(state() + "/agents.sock"), 0600u);
  EXPECT_EQ(modeOf(state() + "/broker.sock"), 0600u);
  std::string broker = instance.facts("cordon-broker"), agents = instance.facts("cordon-agents");
  EXPECT_NE(broker.find(" fds=0,1,2,3s, fdnames=broker listen=1 ours=1 "), std::string::npos)
      << broker;
  EXPECT_NE(agents.find(" fds=0,1,2,3s, fdnames=agents listen=1 ours=1 "), std::string::npos)
      << agents;
  EXPECT_NE(broker.find(" death=15 term-blocked=0 session=1 "), std::string::npos) << broker;
  EXPECT_NE(agents.find(" death=9 term-blocked=0 session=1 "), std::string::npos) << agents;
  EXPECT_NE(broker.find("--allow-host-runtime"), std::string::npos) << broker;
  EXPECT_NE(agents.find("nnp=1"), std::string::npos) << agents;
  EXPECT_NE(agents.find("--one-trust-zone"), std::string::npos) << agents;
  pid_t parts[] = {instance.pidOf("cordon-broker"), instance.pidOf("cordon-agents")};
  EXPECT_EQ(instance.stop(), 0);
  std::string log = instance.read("err");
  size_t agentsEnd = log.find("name=cordon-agents ended");
  size_t brokerEnd = log.find("name=cordon-broker ended");
  ASSERT_NE(brokerEnd, std::string::npos) << log;
  EXPECT_LT(agentsEnd, brokerEnd) << "the frontend ends first";
  for (pid_t pid : parts) EXPECT_TRUE(gone(pid));
  for (const char* name : {"/agents.sock", "/broker.sock", "/notify.sock"}) {
    EXPECT_FALSE(fs::exists(state() + name)) << name;
  }
}

TEST_F(UpTest, SeparatedFrontendsHaveNothing) {
  if (!isRoot()) GTEST_SKIP() << "frontends under uids of their own need root";
  UpOptions options;
  options.agentsUid = 54321;
  options.agentsGroup = 54322;
  options.agentsMode = 0666;
  Instance instance(base, options);
  // Beneath a directory that the frontend's user can't walk.
  ASSERT_EQ(chmod((base / "libexec").c_str(), 0700), 0);
  instance.launch();
  instance.await([&] { return instance.ready(); }, "ready");
  std::string agents = instance.facts("cordon-agents"), broker = instance.facts("cordon-broker");
  EXPECT_NE(agents.find("uid=54321\t54321\t54321\t54321 gid=54321\t54321\t54321\t54321 groups=[]"),
            std::string::npos)
      << agents;
  EXPECT_NE(agents.find("capeff=0000000000000000 capbnd=0000000000000000 nnp=1"), std::string::npos)
      << agents;
  EXPECT_NE(agents.find("fds=0,1,2,3s,"), std::string::npos) << agents;
  EXPECT_NE(agents.find("death=9"), std::string::npos) << agents;
  EXPECT_EQ(agents.find("--one-trust-zone"), std::string::npos) << agents;
  EXPECT_NE(broker.find("uid=0\t"), std::string::npos) << broker;
  EXPECT_NE(broker.find("--agents-uid 54321"), std::string::npos) << broker;
  EXPECT_EQ(broker.find("--allow-host-runtime"), std::string::npos) << broker;
  struct stat st {};
  ASSERT_EQ(stat((state() + "/agents.sock").c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0666u);
  EXPECT_EQ(st.st_gid, 54322u);
  ASSERT_EQ(stat((state() + "/broker.sock").c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0660u);
  EXPECT_EQ(st.st_gid, 54321u);
  EXPECT_EQ(instance.stop(SIGINT), 0);
}

TEST_F(UpTest, APartThatDiesIsStartedAgain) {
  Instance instance(base, private_());
  instance.launch();
  instance.await([&] { return instance.ready(); }, "ready");
  for (const char* part : {"cordon-broker", "cordon-agents"}) {
    pid_t old = instance.pidOf(part);
    kill(old, SIGKILL);
    instance.await([&] { return instance.pidOf(part) != old; }, "another one runs");
  }
  EXPECT_NE(instance.read("err").find("was killed by signal 9"), std::string::npos);
  EXPECT_EQ(instance.stop(), 0);
}

TEST_F(UpTest, APartThatDiesBeforeItIsReadyEndsTheStart) {
  for (const char* part : {"cordon-broker", "cordon-agents"}) {
    Instance instance(base, private_());
    instance.behave(part, "die");
    instance.launch();
    EXPECT_EQ(instance.wait(), cli::kOwnError) << part;
    EXPECT_NE(instance.read("err").find("exited with 4 before it was ready"), std::string::npos);
    EXPECT_EQ(instance.read("out"), "");
    EXPECT_FALSE(fs::exists(state() + "/agents.sock"));
    instance.behave(part, "");
  }
}

TEST_F(UpTest, OnlyThePartItselfCanSayThatItIsReady) {
  Instance instance(base, private_());
  instance.behave("cordon-broker", "spoof");
  instance.launch();
  instance.await([&] { return instance.pidOf("cordon-broker") != 0; }, "the broker runs");
  // A start that believed the child would be through long before this.
  std::this_thread::sleep_for(500ms);
  EXPECT_FALSE(instance.ready());
  EXPECT_EQ(instance.pidOf("cordon-agents"), 0);
  EXPECT_EQ(instance.stop(), 0) << "and SIGTERM ends a start that waits";
}

TEST_F(UpTest, ABrokerThatEndsBadlyIsSaid) {
  Instance instance(base, private_());
  instance.behave("cordon-broker", "fail");
  instance.launch();
  instance.await([&] { return instance.ready(); }, "ready");
  EXPECT_EQ(instance.stop(), 1);
  EXPECT_NE(instance.read("err").find("did not end cleanly"), std::string::npos);
}

TEST_F(UpTest, KilledItTakesItsPartsAlongAndTheNextStartsFresh) {
  Instance instance(base, private_());
  instance.launch();
  instance.await([&] { return instance.ready(); }, "ready");
  pid_t parts[] = {instance.pidOf("cordon-broker"), instance.pidOf("cordon-agents")};
  instance.killAlone();
  for (pid_t pid : parts) instance.await([&] { return gone(pid); }, "the part ends, too");
  EXPECT_TRUE(fs::exists(state() + "/agents.sock")) << "stale";
  instance.launch();
  instance.await([&] { return instance.ready(); }, "ready again");
  EXPECT_EQ(instance.stop(), 0);
}

TEST_F(UpTest, MissingProgramsAreNamed) {
  Instance instance(base, private_());
  fs::remove(base / "libexec/cordon-agents");
  instance.launch();
  EXPECT_NE(instance.wait(), 0);
  EXPECT_NE(instance.read("err").find("cordon-agents is not in"), std::string::npos);
}

TEST_F(UpTest, AProgramThatCannotRunSaysWhy) {
  std::ofstream(base / "program") << "neither script nor ELF";
  fs::permissions(base / "program", fs::perms::owner_all);
  PartSpec spec;
  spec.program = base / "program";
  Fd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  spec.socket = null.get();
  try {
    Part part(spec);
    FAIL();
  } catch (const std::system_error& error) {
    EXPECT_EQ(error.code().value(), ENOEXEC);
    EXPECT_NE(std::string(error.what()).find("exec"), std::string::npos) << error.what();
  }
}

TEST_F(UpTest, AScriptCanBeAPart) {
  std::ofstream(base / "script") << "#!/bin/sh\nexit 7\n";
  fs::permissions(base / "script", fs::perms::owner_all);
  PartSpec spec;
  spec.program = base / "script";
  Fd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  spec.socket = null.get();
  Part part(spec);
  auto ending = part.wait(20'000);
  ASSERT_TRUE(ending);
  EXPECT_EQ(ending->text(), "exited with 7");
}

}  // namespace
}  // namespace cordon::up
