#include "broker/private_mounts.h"

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <kj/debug.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <iterator>

#include "broker/testing_child.h"
#include "broker/testing_directory.h"

namespace cordon::broker {
namespace {

using testing::inChild;
using testing::TemporaryDirectory;

bool hostSees(const std::string& path) {
  std::ifstream file("/proc/self/mountinfo");
  std::string text{std::istreambuf_iterator<char>(file), {}};
  return text.find(path) != std::string::npos;
}

class PrivateMountsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "a mount namespace needs root";
  }
  TemporaryDirectory dir;
};

TEST_F(PrivateMountsTest, TheHostSeesAnEmptyDirectoryAndThenNothing) {
  std::string root = dir / "cordon";
  int go[2], done[2];
  ASSERT_EQ(pipe2(go, O_CLOEXEC), 0);
  ASSERT_EQ(pipe2(done, O_CLOEXEC), 0);
  pid_t pid = fork();
  if (pid == 0) {
    char c;
    try {
      PrivateMounts mounts(root, "ab12");
      std::ofstream(mounts.path() + "/secret") << "x";
      if (write(done[1], "r", 1) != 1 || read(go[0], &c, 1) != 1) _exit(2);
    } catch (...) {
      _exit(3);
    }
    _exit(0);
  }
  close(done[1]);
  char c;
  ASSERT_EQ(read(done[0], &c, 1), 1);
  struct stat st;
  EXPECT_EQ(stat((root + "/ab12").c_str(), &st), 0);
  EXPECT_NE(access((root + "/ab12/secret").c_str(), F_OK), 0);
  EXPECT_FALSE(hostSees(root));
  ASSERT_EQ(write(go[1], "g", 1), 1);
  int status;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
  EXPECT_NE(access((root + "/ab12").c_str(), F_OK), 0);
  for (int fd : {go[0], go[1], done[0]}) close(fd);
}

TEST_F(PrivateMountsTest, InsideItIsATmpfsThatOthersMayTraverseOnly) {
  EXPECT_EQ(inChild([&]() -> std::string {
              PrivateMounts mounts(dir / "cordon", "ab12", 1 << 20);
              struct stat st;
              if (stat(mounts.path().c_str(), &st) != 0 || (st.st_mode & 07777) != 0711) {
                return "mode";
              }
              std::ofstream big(mounts.path() + "/big");
              big << std::string(4 << 20, 'x') << std::flush;
              if (big.good()) return "no size limit";
              big.close();
              if (mounts.remove() != 0) return "remove";
              if (mounts.remove() != 0) return "remove again";
              return "";
            }),
            "");
  EXPECT_NE(access((dir / "cordon/ab12").c_str(), F_OK), 0);
}

TEST_F(PrivateMountsTest, AProgramRunsButIsNeitherReadableNorWritable) {
  EXPECT_EQ(inChild([&]() -> std::string {
              chmod(dir.path().c_str(), 0755);  // for the other uid below
              PrivateMounts mounts(dir / "cordon", "ab12");
              std::string path = mounts.installProgram("/bin/true", "agent");
              struct stat st;
              if (stat(path.c_str(), &st) != 0 || (st.st_mode & 07777) != 0111 || st.st_uid != 0) {
                return "mode";
              }
              if (open(path.c_str(), O_WRONLY) >= 0 || errno != EROFS) return "writable";
              if (chmod(path.c_str(), 0777) == 0 || errno != EROFS) return "chmod";
              if (unlink(path.c_str()) == 0 || errno != EBUSY) return "unlink";
              pid_t pid = fork();
              if (pid == 0) {
                if (setresuid(12345, 12345, 12345) != 0) _exit(2);
                if (open(path.c_str(), O_RDONLY) >= 0) _exit(3);
                execl(path.c_str(), "true", nullptr);
                _exit(4);
              }
              int status;
              waitpid(pid, &status, 0);
              if (status != 0) return "run: " + std::to_string(status);
              return "";
            }),
            "");
}

TEST_F(PrivateMountsTest, ProgramsMustExistAndHavePlainNames) {
  EXPECT_EQ(inChild([&]() -> std::string {
              PrivateMounts mounts(dir / "cordon", "ab12");
              for (const char* name : {"../x", "", "a/b", ".."}) {
                try {
                  mounts.installProgram("/bin/true", name);
                  return std::string("accepted ") + name;
                } catch (const kj::Exception&) {
                }
              }
              try {
                mounts.installProgram("/nonexistent", "x");
                return "accepted nothing";
              } catch (const kj::Exception&) {
              }
              mounts.installProgram("/bin/true", "x");
              return "";
            }),
            "");
}

TEST_F(PrivateMountsTest, TakesOverWhatADeadBrokerLeft) {
  EXPECT_EQ(inChild([&]() -> std::string {
              auto* leaked = new PrivateMounts(dir / "cordon", "ab12");
              return leaked->path() == dir / "cordon/ab12" ? "" : "path";
            }),
            "");
  EXPECT_EQ(access((dir / "cordon/ab12").c_str(), F_OK), 0);
  EXPECT_EQ(inChild([&]() -> std::string {
              PrivateMounts again(dir / "cordon", "ab12");
              return again.remove() == 0 ? "" : "remove";
            }),
            "");
  EXPECT_NE(access((dir / "cordon/ab12").c_str(), F_OK), 0);
}

TEST_F(PrivateMountsTest, RefusesLinksAndOthersDirectories) {
  auto refused = [&](const std::string& root, const std::string& instance) {
    return inChild([&]() -> std::string {
      try {
        PrivateMounts mounts(root, instance);
      } catch (const kj::Exception&) {
        return "refused";
      }
      return "accepted";
    });
  };
  ASSERT_EQ(mkdir((dir / "cordon").c_str(), 0755), 0);
  ASSERT_EQ(mkdir((dir / "elsewhere").c_str(), 0755), 0);
  ASSERT_EQ(symlink((dir / "elsewhere").c_str(), (dir / "cordon/link").c_str()), 0);
  EXPECT_EQ(refused(dir / "cordon", "link"), "refused");
  ASSERT_EQ(mkdir((dir / "cordon/theirs").c_str(), 0755), 0);
  ASSERT_EQ(chown((dir / "cordon/theirs").c_str(), 1000, 1000), 0);
  EXPECT_EQ(refused(dir / "cordon", "theirs"), "refused");
  EXPECT_EQ(refused(dir / "cordon", "../x"), "refused");
  ASSERT_EQ(chmod((dir / "elsewhere").c_str(), 0777), 0);
  EXPECT_EQ(refused(dir / "elsewhere", "x"), "refused");
}

}  // namespace
}  // namespace cordon::broker
