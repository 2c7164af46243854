#include "broker/main/tree_removal.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <kj/debug.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace cordon::broker {
namespace {

namespace fs = std::filesystem;

class TreeRemovalTest : public ::testing::Test {
 public:
  TreeRemovalTest() {
    outside = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    outside += "/cordon-tree-XXXXXX";
    KJ_REQUIRE(mkdtemp(outside.data()) != nullptr);
    tree = outside + "/tree";
    fs::create_directory(tree);
  }
  ~TreeRemovalTest() override {
    std::error_code ignored;
    fs::remove_all(outside, ignored);
  }

 protected:
  // How many slices it took; 0 = stuck.
  int remove(kj::Duration slice = 2 * kj::MILLISECONDS) {
    TreeRemoval removal(tree);
    for (int n = 1; n < 1'000'000; ++n) {
      switch (removal.step(slice)) {
        case TreeRemoval::Progress::kGone:
          return n;
        case TreeRemoval::Progress::kStuck:
          error = removal.error();
          return 0;
        case TreeRemoval::Progress::kMore:
          break;
      }
    }
    return 0;
  }
  void file(const std::string& path) { std::ofstream(path) << "x"; }

  std::string outside, tree;
  int error = 0;
};

TEST_F(TreeRemovalTest, FilesAndDirectoriesGo) {
  fs::create_directories(tree + "/a/b/c");
  file(tree + "/a/b/f");
  file(tree + "/f");
  EXPECT_GT(remove(), 0);
  EXPECT_FALSE(fs::exists(tree));
}

TEST_F(TreeRemovalTest, WhatIsGoneAlreadyIsGone) {
  fs::remove(tree);
  EXPECT_EQ(remove(), 1);
}

TEST_F(TreeRemovalTest, LinksAreRemovedAndNotFollowed) {
  fs::create_directory(outside + "/precious");
  file(outside + "/precious/kept");
  fs::create_directory_symlink(outside + "/precious", tree + "/link");
  fs::create_directory(tree + "/a");
  fs::create_directory_symlink("../../precious", tree + "/a/link");
  EXPECT_GT(remove(), 0);
  EXPECT_TRUE(fs::exists(outside + "/precious/kept"));
}

TEST_F(TreeRemovalTest, ALinkInPlaceOfTheTreeIsNotFollowed) {
  fs::remove(tree);
  fs::create_directory(outside + "/precious");
  file(outside + "/precious/kept");
  fs::create_directory_symlink(outside + "/precious", tree);
  EXPECT_EQ(remove(), 0);
  EXPECT_NE(error, 0);
  EXPECT_TRUE(fs::exists(outside + "/precious/kept"));
}

TEST_F(TreeRemovalTest, DirectoriesWithoutPermissionsGo) {
  fs::create_directories(tree + "/a/b");
  file(tree + "/a/b/f");
  chmod((tree + "/a/b").c_str(), 0);
  chmod((tree + "/a").c_str(), 0);
  EXPECT_GT(remove(), 0);
}

TEST_F(TreeRemovalTest, AChainDeeperThanAnyPathGoes) {
  // 3,000 directories: past PATH_MAX and past the usual number of fds.
  int fd = open(tree.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  for (int i = 0; i < 3000; ++i) {
    ASSERT_EQ(mkdirat(fd, "d", 0700), 0);
    int next = openat(fd, "d", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    ASSERT_GE(next, 0);
    close(fd);
    fd = next;
  }
  close(fd);
  EXPECT_GT(remove(), 0);
}

TEST_F(TreeRemovalTest, AWideTreeTakesManySlices) {
  for (int i = 0; i < 3000; ++i) file(tree + "/" + std::to_string(i));
  EXPECT_GT(remove(100 * kj::MICROSECONDS), 3);
}

TEST_F(TreeRemovalTest, NamesThatLookLikeOursAreNoObstacle) {
  fs::create_directories(tree + "/.cordon-removing-1/x");
  file(tree + "/.cordon-removing-2");
  fs::create_directories(tree + "/a/b/c");
  file(tree + "/a/b/c/f");
  EXPECT_GT(remove(), 0);
}

}  // namespace
}  // namespace cordon::broker
