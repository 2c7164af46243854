// The programs as plain processes of this machine, unarmed and small: that they
// start, do something, and tell it in the grammar of the facts.
//
// escape_programs_test PATH
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "escape_suite/facts.h"
#include "escape_suite/outside.h"
#include "escape_suite/suite.h"

namespace cordon::escape {
namespace {

std::string programs;

constexpr uintmax_t kMostBytes = 900'000;

struct Ended {
  int status = -1;
  Facts facts;
};

std::string readAll(int fd) {
  std::string all;
  char buffer[4096];
  ssize_t n = 0;
  while ((n = read(fd, buffer, sizeof(buffer))) > 0) all.append(buffer, static_cast<size_t>(n));
  return all;
}

// A process of its own in a directory of its own, with `limit` set on the way.
Ended run(
    std::vector<std::string> words, bool factsOnStderr = false, void (*limit)() = [] {}) {
  char directory[] = "/tmp/cordon-programs-test-XXXXXX";
  if (mkdtemp(directory) == nullptr) return {};
  int facts[2];
  if (pipe2(facts, O_CLOEXEC) < 0) return {};
  words.insert(words.begin(), programs);
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  pid_t child = fork();
  if (child == 0) {
    int null = open("/dev/null", O_RDWR);
    dup2(null, 0);
    dup2(factsOnStderr ? null : facts[1], 1);
    dup2(factsOnStderr ? facts[1] : null, 2);
    if (chdir(directory) < 0) _exit(125);
    limit();
    execv(argv[0], argv.data());
    _exit(126);
  }
  close(facts[1]);
  Ended result;
  result.facts = parseFacts(readAll(facts[0]));
  close(facts[0]);
  if (child > 0) waitpid(child, &result.status, 0);
  std::filesystem::remove_all(directory);
  return result;
}

int64_t fact(const Ended& result, const char* key) {
  return result.facts.last(key).value_or(-4711);
}

TEST(Programs, AreSmall) {
  EXPECT_LT(std::filesystem::file_size(programs), kMostBytes);
}

TEST(Programs, RefuseWhatTheyDoNotKnow) {
  EXPECT_EQ(WEXITSTATUS(run({"nonsense", "safe"}).status), 64);
  EXPECT_EQ(WEXITSTATUS(run({"alive"}).status), 64);
  EXPECT_EQ(WEXITSTATUS(run({"alive", "armedd"}).status), 64);
  EXPECT_EQ(fact(run({"alive", "safe"}), "alive"), 1);
}

// Every program that needs nothing, unarmed: begins, tells, ends.
TEST(Programs, TellFactsWhenRunUnarmed) {
  for (const SuiteRow& row : suite()) {
    std::vector<std::string> words{row.program, "safe"};
    std::string name = row.program;
    if (name == "memory") words.push_back("16777216");
    if (name == "three_children") words.push_back("4194304");
    if (name == "cpu") words.push_back("200");
    if (name == "sleep") words.push_back("150");
    if (name == "fork" || name == "zombies") words.push_back("8");
    if (name == "flood") words.push_back("4194304");
    if (name == "big_file") words.push_back("2097152");
    if (name == "files") words.push_back("32");
    if (name == "fill_tmp") words.insert(words.end(), {"/tmp", "1048576"});
    if (name == "fill_shm") words.insert(words.end(), {"/dev/shm", "1048576"});
    if (name == "sysv_shm") words.push_back("16777216");
    if (name == "write_outside") words.push_back("/nonexistent/file");
    if (name == "connect") words.insert(words.end(), {"1", "cordon-nobody", "1"});
    if (name == "daemon") continue;  // has a test of its own
    Ended result = run(words, row.factsOnStderr);
    EXPECT_EQ(result.status, 0) << name;
    EXPECT_EQ(result.facts.problem, "") << name;
    EXPECT_EQ(fact(result, "begun"), 1) << name;
    EXPECT_EQ(fact(result, "done"), 1) << name;
    // More than that it was there, except where there is nothing to do unarmed.
    if (!row.sandboxOnly) {
      EXPECT_GT(result.facts.items.size(), 2u) << name;
    }
  }
}

TEST(Programs, ConnectIsHeard) {
  Listeners listeners({});
  ASSERT_TRUE(listeners.check());
  Ended result = run({"connect", "safe", std::to_string(listeners.tcpPort()),
                      listeners.abstractName(), std::to_string(listeners.vsockPort())});
  EXPECT_EQ(fact(result, "try_loopback_tcp"), 0);
  EXPECT_EQ(fact(result, "try_abstract_stream"), 0);
  // TCP, the datagram and the abstract socket, and vsock where there is one.
  auto heard = listeners.heard();
  EXPECT_GE(heard.size(), 3u);
  if (!listeners.noIpv6().empty()) GTEST_SKIP() << "no IPv6 here: " << listeners.noIpv6();
  EXPECT_EQ(fact(result, "try_loopback_tcp6"), 0);
  EXPECT_TRUE(std::any_of(heard.begin(), heard.end(),
                          [](auto& name) { return name.starts_with("tcp ::1 port "); }));
}

TEST(Programs, WriteOutsideWrites) {
  HostPlaces places;
  Ended result = run({"write_outside", "safe", places.paths().back()});
  EXPECT_EQ(fact(result, "path0"), 0);
  bool complete = false;
  EXPECT_EQ(places.found(&complete).size(), 1u);
}

TEST(Programs, MemoryIsTouchedAndRefusalIsTold) {
  Ended all = run({"memory", "safe", "33554432"});
  EXPECT_EQ(fact(all, "touched"), 33554432);
  EXPECT_EQ(fact(all, "error"), 0);
  Ended refused = run({"memory", "safe", "1073741824"}, false, [] {
    rlimit limit{.rlim_cur = 64 << 20, .rlim_max = 64 << 20};
    setrlimit(RLIMIT_DATA, &limit);
  });
  EXPECT_LT(fact(refused, "touched"), 64 << 20);
  EXPECT_EQ(fact(refused, "error"), ENOMEM);
}

TEST(Programs, ThreeChildrenHoldTogether) {
  Ended result = run({"three_children", "safe", "8388608"});
  EXPECT_EQ(fact(result, "started"), 3);
  EXPECT_EQ(fact(result, "together"), 3 * 8388608);
  EXPECT_EQ(fact(result, "killed"), 0);
}

TEST(Programs, FilesStopAtTheLimit) {
  Ended result = run({"files", "safe", "1000"}, false, [] {
    rlimit limit{.rlim_cur = 64, .rlim_max = 64};
    setrlimit(RLIMIT_NOFILE, &limit);
  });
  // As root with CAP_SYS_RESOURCE the limit can be raised; else it holds.
  if (fact(result, "raise") == EPERM) {
    EXPECT_EQ(fact(result, "error"), EMFILE);
    EXPECT_EQ(fact(result, "highest"), 63);
  } else {
    EXPECT_EQ(fact(result, "opened"), 1000);
  }
}

TEST(Programs, BigFileMeetsItsLimitAndDiesOfIt) {
  Ended result = run({"big_file", "safe", "4194304"}, false, [] {
    rlimit limit{.rlim_cur = 1 << 20, .rlim_max = 1 << 20};
    setrlimit(RLIMIT_FSIZE, &limit);
  });
  EXPECT_TRUE(WIFSIGNALED(result.status));
  EXPECT_EQ(WTERMSIG(result.status), SIGXFSZ);
  EXPECT_EQ(fact(result, "size"), 1 << 20);
  EXPECT_EQ(fact(result, "by_tricks"), 0);
  EXPECT_EQ(fact(result, "error"), EFBIG);
}

TEST(Programs, ForkHasThemAllAliveAtOnce) {
  Ended result = run({"fork", "safe", "20"});
  EXPECT_EQ(fact(result, "alive"), 20);
}

TEST(Programs, DaemonOutlivesItsMainProcess) {
  std::string nonce = randomName();
  Ended result = run({"daemon", "safe", nonce});
  EXPECT_EQ(fact(result, "daemon"), 1);
  EXPECT_TRUE(processWithArgument(nonce));
  // Ours to end: found by its argument, which nobody else has.
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::string pid = entry.path().filename();
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    int fd = open((entry.path() / "cmdline").c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) continue;
    std::string line = readAll(fd);
    close(fd);
    if (line.find(nonce) != std::string::npos) kill(std::stoi(pid), SIGKILL);
  }
}

}  // namespace
}  // namespace cordon::escape

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc != 2) {
    fprintf(stderr, "usage: %s PATH-OF-ESCAPE-PROGRAMS\n", argv[0]);
    return 64;
  }
  cordon::escape::programs = std::filesystem::absolute(argv[1]);
  return RUN_ALL_TESTS();
}
