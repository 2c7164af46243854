#include "broker/cgroups_discovery.h"

#include <gtest/gtest.h>

namespace cordon::broker {
namespace {

const Hierarchy* find(const std::vector<Hierarchy>& all, const std::string& label) {
  for (auto& h : all) {
    if (h.label() == label) return &h;
  }
  return nullptr;
}

TEST(CgroupDiscovery, HybridWithCoMountedControllers) {
  auto all = parseHierarchies(
      "25 30 0:23 / /sys rw,nosuid shared:7 - sysfs sysfs rw\n"
      "31 25 0:26 / /sys/fs/cgroup ro,nosuid shared:9 - tmpfs tmpfs ro,mode=755\n"
      "32 31 0:27 / /sys/fs/cgroup/unified rw,nosuid shared:10 - cgroup2 cgroup2 rw,nsdelegate\n"
      "33 31 0:28 / /sys/fs/cgroup/systemd rw shared:11 - cgroup cgroup rw,xattr,name=systemd\n"
      "36 31 0:31 / /sys/fs/cgroup/cpu,cpuacct rw shared:14 - cgroup cgroup rw,cpu,cpuacct\n"
      "37 31 0:32 / /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
      "12:memory:/user.slice\n4:cpu,cpuacct:/a:b\n1:name=systemd:/init.scope\n0::/init.scope\n");
  ASSERT_EQ(all.size(), 4u);
  auto* cpu = find(all, "cpu,cpuacct");
  ASSERT_NE(cpu, nullptr);
  EXPECT_TRUE(cpu->has("cpu"));
  EXPECT_TRUE(cpu->has("cpuacct"));
  EXPECT_FALSE(cpu->has("memory"));
  EXPECT_EQ(cpu->ownPath, "/a:b");
  EXPECT_TRUE(cpu->writable);
  ASSERT_NE(find(all, "memory"), nullptr);
  EXPECT_FALSE(find(all, "memory")->writable);
  EXPECT_EQ(find(all, "memory")->ownPath, "/user.slice");
  ASSERT_NE(find(all, "unified"), nullptr);
  EXPECT_TRUE(find(all, "unified")->v2);
  EXPECT_EQ(find(all, "unified")->ownPath, "/init.scope");
  ASSERT_NE(find(all, "name=systemd"), nullptr);
  EXPECT_EQ(find(all, "name=systemd")->ownPath, "/init.scope");
}

TEST(CgroupDiscovery, EscapedPathsAndRootsOfContainers) {
  auto all = parseHierarchies(
      "40 31 0:29 /docker/ab\\040cd /sys/fs/cgroup/my\\040pids\\134x rw - cgroup cgroup rw,pids\n",
      "3:pids:/docker/ab cd\n");
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].mountPoint, "/sys/fs/cgroup/my pids\\x");
  EXPECT_EQ(all[0].mountRoot, "/docker/ab cd");
  EXPECT_EQ(all[0].ownPath, "/docker/ab cd");
}

TEST(CgroupDiscovery, AHierarchyMountedTwiceCountsOnce) {
  auto all = parseHierarchies(
      "40 1 0:29 /sub /first rw - cgroup cgroup rw,pids\n"
      "41 1 0:29 / /second rw - cgroup cgroup rw,pids\n"
      "42 1 0:29 / /third rw - cgroup cgroup rw,pids\n"
      "43 1 0:30 / /ro ro - cgroup cgroup rw,memory\n"
      "44 1 0:30 /x /rw rw - cgroup cgroup rw,memory\n",
      "");
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(find(all, "pids")->mountPoint, "/second");
  EXPECT_EQ(find(all, "memory")->mountPoint, "/rw");
}

TEST(CgroupDiscovery, PureV2) {
  auto all =
      parseHierarchies("30 24 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
                       "0::/system.slice/cordon.service\n");
  ASSERT_EQ(all.size(), 1u);
  EXPECT_TRUE(all[0].v2);
  EXPECT_EQ(all[0].ownPath, "/system.slice/cordon.service");
}

TEST(CgroupDiscovery, DamagedLinesAreSkipped) {
  auto all = parseHierarchies(
      "\n - \n1 2 3\n40 1 0:29 / /a rw - cgroup\n40 1 0:29 / /a rw cgroup cgroup rw,pids\n"
      "40 1 0:29 / /a\\9 rw - cgroup cgroup rw,pids\\0\n",
      ":\n::\nx\n1:\n");
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].mountPoint, "/a\\9");
  EXPECT_TRUE(all[0].controllers.empty());
}

}  // namespace
}  // namespace cordon::broker
