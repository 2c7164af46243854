#include "runtimes/remove_tree.h"

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <kj/io.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace cordon::runtimes {
namespace {

class RemoveTree : public ::testing::Test {
 protected:
  RemoveTree() {
    char path[] = "/tmp/cordon-remove-XXXXXX";
    root_ = mkdtemp(path);
    fd_ = kj::AutoCloseFd(open(root_.c_str(), O_DIRECTORY | O_CLOEXEC | O_RDONLY));
  }
  ~RemoveTree() noexcept override { std::filesystem::remove_all(root_); }

  // Until done or hopeless.
  std::vector<broker::LeftOver> removeAll(const std::string& name) {
    for (int i = 0; i < 10'000; ++i) {
      auto left = removeTree(fd_, name);
      if (left.empty() || left[0].error != EAGAIN) return left;
    }
    return {{"directory", name, EAGAIN}};
  }

  std::string root_;
  kj::AutoCloseFd fd_;
};

TEST_F(RemoveTree, RemovesAndIsIdempotent) {
  std::filesystem::create_directories(root_ + "/a/b/c");
  std::ofstream(root_ + "/a/b/file") << "x";
  std::filesystem::create_symlink("/etc", root_ + "/a/link");
  mkfifo((root_ + "/a/fifo").c_str(), 0600);
  EXPECT_TRUE(removeAll("a").empty());
  EXPECT_FALSE(std::filesystem::exists(root_ + "/a"));
  EXPECT_TRUE(removeAll("a").empty());
}

TEST_F(RemoveTree, DoesNotFollowLinks) {
  std::filesystem::create_directories(root_ + "/kept");
  std::ofstream(root_ + "/kept/file") << "x";
  std::filesystem::create_directories(root_ + "/a");
  std::filesystem::create_directory_symlink("../kept", root_ + "/a/link");
  std::filesystem::create_directory_symlink("kept", root_ + "/b");
  EXPECT_TRUE(removeAll("a").empty());
  EXPECT_TRUE(removeAll("b").empty());
  EXPECT_TRUE(std::filesystem::exists(root_ + "/kept/file"));
}

TEST_F(RemoveTree, RefusesPaths) {
  std::filesystem::create_directories(root_ + "/a/b");
  for (const char* name : {"", ".", "..", "a/b", "../x"}) {
    auto left = removeTree(fd_, name);
    ASSERT_EQ(left.size(), 1u) << name;
    EXPECT_EQ(left[0].error, EINVAL);
  }
  EXPECT_TRUE(std::filesystem::exists(root_ + "/a/b"));
}

TEST_F(RemoveTree, CopesWithDepthPastAnyPathLength) {
  ASSERT_EQ(mkdirat(fd_, "deep", 0700), 0);
  kj::AutoCloseFd at(openat(fd_, "deep", O_DIRECTORY | O_CLOEXEC));
  for (int i = 0; i < 3000; ++i) {
    ASSERT_EQ(mkdirat(at, "d", 0700), 0);
    at = kj::AutoCloseFd(openat(at, "d", O_DIRECTORY | O_CLOEXEC));
  }
  EXPECT_TRUE(removeAll("deep").empty());
  EXPECT_FALSE(std::filesystem::exists(root_ + "/deep"));
}

TEST_F(RemoveTree, StopsWhenTheTimeIsUp) {
  std::filesystem::create_directories(root_ + "/many");
  for (int i = 0; i < 2000; ++i) std::ofstream(root_ + "/many/" + std::to_string(i));
  auto left = removeTree(fd_, "many", 0 * kj::MILLISECONDS);
  ASSERT_EQ(left.size(), 1u);
  EXPECT_EQ(left[0].error, EAGAIN);
  EXPECT_TRUE(removeAll("many").empty());
}

TEST_F(RemoveTree, OpensUpClosedDirectories) {
  std::filesystem::create_directories(root_ + "/a/closed");
  std::ofstream(root_ + "/a/closed/file") << "x";
  std::filesystem::create_directories(root_ + "/a/shut/below");
  chmod((root_ + "/a/closed").c_str(), 0500);
  chmod((root_ + "/a/shut").c_str(), 0);
  EXPECT_TRUE(removeAll("a").empty());
}

}  // namespace
}  // namespace cordon::runtimes
