#include "broker/kernel_facts.h"

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <string>

namespace cordon::broker {
namespace {

constexpr char kStatus[] =
    "Name:\tvm\\nUid:\t0\n"
    "Uid:\t1883045352\t1883045352\t1883045352\t1883045353\n"
    "Gid:\t65000\t65000\t65000\t65000\n"
    "Groups:\t \n"
    "NSpid:\t28835\t1\n"
    "CapInh:\t00000000000000e0\n"
    "CapPrm:\t00000000000000e0\n"
    "CapEff:\t00000000000000c0\n"
    "CapBnd:\t000001ffffffffff\n"
    "CapAmb:\t0000000000000000\n"
    "NoNewPrivs:\t1\n"
    "Seccomp:\t2\n"
    "Seccomp_filters:\t3\n";

std::string without(std::string text, const std::string& key) {
  size_t begin = text.find("\n" + key + ":") + 1;
  return text.erase(begin, text.find('\n', begin) + 1 - begin);
}

TEST(KernelFacts, Status) {
  auto facts = parseStatus(kStatus);
  ASSERT_TRUE(facts);
  EXPECT_EQ(facts->uids[0], 1883045352u);
  EXPECT_EQ(facts->uids[3], 1883045353u);
  EXPECT_EQ(facts->gids[1], 65000u);
  EXPECT_EQ(facts->capInheritable, 0xe0u);
  EXPECT_EQ(facts->capEffective, 0xc0u);
  EXPECT_EQ(facts->capBounding, 0x1ffffffffffu);
  EXPECT_EQ(facts->capAmbient, 0u);
  EXPECT_TRUE(facts->noNewPrivs);
  EXPECT_EQ(facts->seccompMode, 2u);
  EXPECT_EQ(facts->seccompFilters, 3u);
  EXPECT_EQ(facts->pidLevels, 2u);
}

TEST(KernelFacts, StatusIsWholeOrNothing) {
  for (const char* key : {"Uid", "Gid", "NSpid", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb",
                          "NoNewPrivs", "Seccomp"}) {
    EXPECT_FALSE(parseStatus(without(kStatus, key))) << key;
  }
  auto old = parseStatus(without(kStatus, "Seccomp_filters"));
  ASSERT_TRUE(old);
  EXPECT_FALSE(old->seccompFilters);
  for (const char* more : {"Uid:\t0\t0\t0\t0\n", "CapEff:\t0\n", "NoNewPrivs:\t0\n"}) {
    EXPECT_FALSE(parseStatus(std::string(kStatus) + more)) << "twice: " << more;
  }
  for (const char* bad : {"Seccomp:\t-1\n", "Seccomp:\t2 2\n", "Seccomp:\t\n"}) {
    EXPECT_FALSE(parseStatus(without(kStatus, "Seccomp") + bad)) << bad;
  }
  EXPECT_FALSE(parseStatus(without(kStatus, "NoNewPrivs") + "NoNewPrivs:\t2\n"));
  EXPECT_FALSE(parseStatus(""));
}

TEST(KernelFacts, IdMap) {
  auto map = parseIdMap("         0 1882980352      65536\n");
  ASSERT_TRUE(map);
  EXPECT_EQ(*map, (std::vector<IdMapLine>{{0, 1882980352, 65536}}));
  EXPECT_EQ(parseIdMap("")->size(), 0u);
  EXPECT_EQ(parseIdMap("0 0 4294967295\n1 2 3\n")->size(), 2u);
  for (const char* bad : {"0 0\n", "0 0 1 1\n", "0 0 x\n", "-1 0 1\n", "\n", "0 0 4294967296\n"}) {
    EXPECT_FALSE(parseIdMap(bad)) << bad;
  }
  std::string many;
  for (size_t i = 0; i <= kMostIdMapLines; ++i) many += "1 2 3\n";
  EXPECT_FALSE(parseIdMap(many));
}

TEST(KernelFacts, MountInfo) {
  auto mounts = parseMountInfo(
      "97 102 0:40 /images/a\\040b / ro,nosuid,nodev,relatime - tmpfs cordon rw,size=262144k\n"
      "137 136 0:6 /null /dev/null rw,nosuid shared:4 master:7 - devtmpfs devtmpfs rw\n"
      "138 136 0:9 / /\xc3\xa4 rw - tmpfs  rw\n");
  ASSERT_TRUE(mounts);
  ASSERT_EQ(mounts->size(), 3u);
  auto& root = (*mounts)[0];
  EXPECT_EQ(root.id, 97u);
  EXPECT_EQ(root.root, "/images/a\\040b");
  EXPECT_EQ(root.where, "/");
  EXPECT_EQ(root.flags, "ro,nosuid,nodev,relatime");
  EXPECT_EQ(root.type, "tmpfs");
  EXPECT_EQ(root.source, "cordon");
  EXPECT_EQ(root.options, "rw,size=262144k");
  EXPECT_EQ((*mounts)[1].where, "/dev/null");
  EXPECT_EQ((*mounts)[1].type, "devtmpfs");
  EXPECT_EQ((*mounts)[2].where, "/\\303\\244");
  EXPECT_EQ((*mounts)[2].source, "");
  EXPECT_EQ((*mounts)[2].options, "rw");
}

TEST(KernelFacts, MountInfoIsWholeOrNothing) {
  for (const char* bad : {"97 102 0:40 / / ro\n", "97 102 0:40 / / ro -\n",
                          "x 1 0:1 / / ro - a b c\n", "97 102 0:40 / / ro - tmpfs\n", "\n"}) {
    EXPECT_FALSE(parseMountInfo(bad)) << bad;
  }
  std::string line = "1 1 0:1 / / rw - a b c\n", many;
  for (size_t i = 0; i < kMostMountFacts; ++i) many += line;
  EXPECT_EQ(parseMountInfo(many)->size(), kMostMountFacts);
  EXPECT_FALSE(parseMountInfo(many + line));
  EXPECT_FALSE(parseMountInfo("1 1 0:1 /" + std::string(kMostFactBytes, 'x') + " / rw - a b c\n"));
}

TEST(KernelFacts, Rlimits) {
  auto limits = parseRlimits(
      "Limit                     Soft Limit           Hard Limit           Units     \n"
      "Max core file size        1                    unlimited            bytes     \n"
      "Max nice priority         0                    0                    \n");
  ASSERT_TRUE(limits);
  ASSERT_EQ(limits->size(), 2u);
  EXPECT_EQ((*limits)[0].name, "Max core file size");
  EXPECT_EQ((*limits)[0].soft, "1");
  EXPECT_EQ((*limits)[0].hard, "unlimited");
  EXPECT_EQ((*limits)[0].unit, "bytes");
  EXPECT_EQ((*limits)[1].unit, "");
  for (const char* bad : {"Head\nMax core\n", "Head\n                          1 1 bytes\n",
                          "Head\nMax core file size        1\n", "Head\n\n"}) {
    EXPECT_FALSE(parseRlimits(bad)) << bad;
  }
}

TEST(KernelFacts, Interfaces) {
  auto interfaces = parseInterfaces(
      "Inter-|   Receive ...\n face |bytes ...\n"
      "    lo:     100       2    0    0    0     0          0         0      200       2    0    0"
      "    0     0       0          0\n"
      "eth0:18446744073709551615 0 0 0 0 0 0 0 5 0 0 0 0 0 0 0\n");
  ASSERT_TRUE(interfaces);
  ASSERT_EQ(interfaces->size(), 2u);
  EXPECT_EQ((*interfaces)[0].name, "lo");
  EXPECT_EQ((*interfaces)[0].receivedBytes, 100u);
  EXPECT_EQ((*interfaces)[0].sentBytes, 200u);
  EXPECT_EQ((*interfaces)[1].receivedBytes, UINT64_MAX);
  EXPECT_EQ((*interfaces)[1].sentBytes, 5u);
  for (const char* bad : {"a\nb\nlo\n", "a\nb\nlo: 1 2\n", "a\nb\n: 1 2 3 4 5 6 7 8 9\n",
                          "a\nb\nl o: 1 2 3 4 5 6 7 8 9\n"}) {
    EXPECT_FALSE(parseInterfaces(bad)) << bad;
  }
}

TEST(KernelFacts, PlainText) {
  EXPECT_EQ(plainText("Max core\\040file"), "Max core\\040file");
  EXPECT_EQ(plainText(std::string("\x1b[1m\n\x00\xff", 7)), "\\033[1m\\012\\000\\377");
}

TEST(KernelFacts, PlainPath) {
  EXPECT_EQ(plainPath("/dev/null"), "/dev/null");
  EXPECT_EQ(plainPath("/a b\\c\n"), "/a\\040b\\134c\\012");
}

TEST(KernelFacts, CapabilityNames) {
  EXPECT_EQ(capabilityNames(0xe0),
            (std::vector<std::string>{"cap_kill", "cap_setgid", "cap_setuid"}));
  EXPECT_EQ(capabilityNames(0).size(), 0u);
  EXPECT_EQ(capabilityNames(~uint64_t{0}).size(), 64u);
}

// A child that differs from us in what a card tells.
TEST(KernelFacts, ReadsAProcessOfItsOwn) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  pid_t pid = fork();
  ASSERT_GE(pid, 0);
  if (pid == 0) {
    rlimit core = {0, 0};
    bool good = prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && setrlimit(RLIMIT_CORE, &core) == 0;
    _exit(good && write(ready[1], "x", 1) == 1 && pause() == 0 ? 0 : 1);
  }
  char byte;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  auto facts = readProcess(pid);
  auto own = readProcess(0);
  kill(pid, SIGKILL);
  ASSERT_EQ(waitpid(pid, nullptr, 0), pid);
  auto gone = readProcess(pid);
  close(ready[0]);
  close(ready[1]);

  ASSERT_TRUE(facts.status.had()) << facts.status.missing;
  EXPECT_TRUE(facts.status.value.noNewPrivs);
  EXPECT_EQ(facts.status.value.uids[0], getuid());
  EXPECT_EQ(facts.status.value.pidLevels, 1u);
  ASSERT_TRUE(facts.rlimits.had()) << facts.rlimits.missing;
  auto& limits = facts.rlimits.value;
  auto core = std::find_if(limits.begin(), limits.end(),
                           [](auto& limit) { return limit.name == "Max core file size"; });
  ASSERT_NE(core, limits.end());
  EXPECT_EQ(core->hard, "0");
  ASSERT_TRUE(facts.mounts.had()) << facts.mounts.missing;
  ASSERT_TRUE(own.mounts.had());
  ASSERT_GT(facts.mounts.value.size(), 0u);
  EXPECT_EQ(facts.mounts.value[0].id, own.mounts.value[0].id);
  ASSERT_TRUE(facts.interfaces.had()) << facts.interfaces.missing;
  EXPECT_EQ(facts.uidMap.value, own.uidMap.value);
  EXPECT_EQ(facts.networkFile.value, own.networkFile.value);
  EXPECT_NE(facts.networkFile.value, 0u);
  // Each says that it is not there, and none is made up.
  for (auto* missing :
       {&gone.status.missing, &gone.uidMap.missing, &gone.mounts.missing, &gone.rlimits.missing,
        &gone.interfaces.missing, &gone.networkFile.missing}) {
    EXPECT_NE(*missing, "");
  }
}

TEST(KernelFacts, OwnNamespaces) {
  auto own = ownNamespaces();
  struct stat status;
  ASSERT_EQ(stat("/proc/self/ns/mnt", &status), 0);
  EXPECT_EQ(own[static_cast<size_t>(NamespaceKind::kMount)], status.st_ino);
  for (auto inode : own) EXPECT_NE(inode, 0u);
}

}  // namespace
}  // namespace cordon::broker
