// Needs root: mounts in a mount namespace of the test's own.
#include "runtimes/images.h"

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <kj/async-unix.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>

#include "runtimes/directory_image.h"
#include "runtimes/image_walk.h"

namespace cordon::runtimes {
namespace {

namespace fs = std::filesystem;

size_t mountCount() {
  std::ifstream file("/proc/self/mountinfo");
  size_t count = 0;
  for (std::string line; std::getline(file, line);) ++count;
  return count;
}

class Images : public ::testing::Test {
 protected:
  ~Images() noexcept override {}
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "mounting needs root";
    static const bool isolated =
        unshare(CLONE_NEWNS) == 0 && mount("", "/", nullptr, MS_REC | MS_SLAVE, nullptr) == 0;
    ASSERT_TRUE(isolated) << "no mount namespace: " << strerror(errno);
    umask(022);
    char path[] = "/tmp/cordon-images-XXXXXX";
    root_ = mkdtemp(path);
    ASSERT_EQ(mount("tmpfs", path, "tmpfs", 0, "mode=755"), 0);
    mounted_ = true;
    for (const char* name : {"/images", "/images/one", "/images/one/bin", "/images/one/etc"}) {
      fs::create_directory(root_ + name);
    }
    std::ofstream(root_ + "/images/one/bin/tool") << "tool";
    std::ofstream(root_ + "/images/one/etc/issue") << "one";
    std::ofstream(root_ + "/images/one/README") << "readme";
    fs::create_symlink("bin", root_ + "/images/one/sbin");
    agent_ = root_ + "/vm-agent";
    fs::copy_file("/bin/true", agent_);
    chmod(agent_.c_str(), 0755);
    mounts_ = mountCount();
    open();
  }
  void TearDown() override {
    if (store_.get() != nullptr) store_->removeAll();
    store_ = nullptr;
    if (mounted_) {
      EXPECT_EQ(mountCount(), mounts_) << "mounts are left";
      umount2(root_.c_str(), MNT_DETACH);
      rmdir(root_.c_str());
    }
  }

  void open() {
    store_ = ImageStore::open(root_ + "/skeletons", {root_ + "/none", root_ + "/images"}, agent_,
                              port_.getTimer());
  }

  using Resolved = kj::OneOf<std::shared_ptr<const Image>, ImageRefusal>;
  Resolved resolve(const std::string& name) { return store_->resolve(name, false).wait(wait_); }

  std::shared_ptr<const Image> accepted(const std::string& name) {
    Resolved answer = resolve(name);
    if (answer.is<ImageRefusal>()) {
      ADD_FAILURE() << name << " was refused: " << answer.get<ImageRefusal>().detail;
      return nullptr;
    }
    return answer.get<std::shared_ptr<const Image>>();
  }

  // Asks until the answer is one that was given before.
  std::shared_ptr<const Image> remembered(const std::string& name) {
    auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    std::shared_ptr<const Image> last;
    while (std::chrono::steady_clock::now() < deadline) {
      auto image = accepted(name);
      if (image == last) return image;
      last = image;
      usleep(10'000);
    }
    ADD_FAILURE() << name << " is never remembered";
    return last;
  }

  // Until the change of the image's root is so old that answers are remembered.
  void settle(const std::string& name) {
    struct stat status;
    ASSERT_EQ(stat((root_ + "/images/" + name).c_str(), &status), 0);
    timespec now;
    auto age = [&] {
      clock_gettime(CLOCK_REALTIME, &now);
      return (now.tv_sec - status.st_ctim.tv_sec) * 1000 +
             (now.tv_nsec - status.st_ctim.tv_nsec) / 1'000'000;
    };
    while (age() < 200) usleep(10'000);
  }

  void expectRefused(const std::string& name, rpc::Reason reason, const std::string& part) {
    Resolved answer = resolve(name);
    if (!answer.is<ImageRefusal>()) {
      ADD_FAILURE() << name << " was accepted";
      return;
    }
    EXPECT_EQ(answer.get<ImageRefusal>().reason, reason) << name;
    EXPECT_NE(answer.get<ImageRefusal>().detail.find(part), std::string::npos)
        << answer.get<ImageRefusal>().detail;
  }
  void expectImageRefused(const std::string& part) {
    expectRefused("one", rpc::Reason::IMAGE_REFUSED, part);
  }

  // Exit status of a program in the image, run in a chroot.
  static int runIn(const Image& image, std::vector<std::string> argv) {
    pid_t child = fork();
    if (child == 0) {
      std::vector<char*> args;
      for (std::string& arg : argv) args.push_back(arg.data());
      args.push_back(nullptr);
      if (chroot(image.rootfs.c_str()) != 0 || chdir("/") != 0) _exit(125);
      if (setgid(1000) != 0 || setuid(1000) != 0) _exit(124);
      execve(args[0], args.data(), nullptr);
      _exit(127);
    }
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  kj::UnixEventPort port_;
  kj::EventLoop loop_{port_};
  kj::WaitScope wait_{loop_};
  std::string root_, agent_;
  bool mounted_ = false;
  size_t mounts_ = 0;
  kj::Own<ImageStore> store_;
};

std::set<std::string> namesIn(const std::string& path) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(path)) names.insert(entry.path().filename());
  return names;
}

unsigned long mountFlags(const std::string& path) {
  struct statvfs status;
  EXPECT_EQ(statvfs(path.c_str(), &status), 0) << path;
  return status.f_flag;
}

TEST_F(Images, HostUsrShowsOnlyTheAllowList) {
  auto image = accepted("");
  ASSERT_TRUE(image);
  EXPECT_EQ(image, accepted("host-usr"));
  const std::string& root = image->rootfs;
  for (const std::string& name : namesIn(root)) {
    EXPECT_TRUE(
        std::set<std::string>({".cordon", "bin", "dev", "etc", "lib", "lib32", "lib64", "libx32",
                               "proc", "run", "sbin", "sys", "tmp", "usr", "var", "work"})
            .count(name))
        << name;
  }
  for (const std::string& name : namesIn(root + "/etc")) {
    EXPECT_TRUE(std::set<std::string>({"passwd", "group", "hosts", "nsswitch.conf", "os-release",
                                       "ld.so.cache", "ssl", "alternatives"})
                    .count(name))
        << name;
  }
  for (const char* path : {"/etc/shadow", "/etc/gshadow", "/etc/ssl/private", "/home", "/root"}) {
    EXPECT_FALSE(fs::exists(root + path)) << path;
  }
  EXPECT_TRUE(fs::is_empty(root + "/run"));
  EXPECT_EQ(namesIn(root + "/var"), std::set<std::string>{"tmp"});
  for (const char* path : {"/", "/usr", "/etc", "/.cordon/vm-agent", "/etc/alternatives"}) {
    unsigned long flags = mountFlags(root + path);
    EXPECT_TRUE(flags & ST_RDONLY) << path;
    EXPECT_TRUE(flags & ST_NOSUID) << path;
    EXPECT_TRUE(flags & ST_NODEV) << path;
  }
  int file = ::open((root + "/etc/new").c_str(), O_WRONLY | O_CREAT, 0600);
  EXPECT_EQ(file, -1);
  EXPECT_EQ(errno, EROFS);
}

TEST_F(Images, HostUsrRunsPrograms) {
  auto image = accepted("host-usr");
  ASSERT_TRUE(image);
  EXPECT_EQ(runIn(*image, {"/bin/bash", "-c", "exit 7"}), 7);
  EXPECT_EQ(runIn(*image, {"/.cordon/vm-agent"}), 0);
  EXPECT_EQ(runIn(*image, {"/usr/bin/id", "-un"}), 0);
  if (fs::exists("/usr/bin/python3")) {
    EXPECT_EQ(runIn(*image, {"/usr/bin/python3", "-c",
                             "import ssl, sqlite3, json, multiprocessing, getpass, socket\n"
                             "assert ssl.create_default_context()\n"
                             "assert socket.gethostbyname('localhost') == '127.0.0.1'\n"}),
              0);
  }
}

TEST_F(Images, DirectoryIsShownReadOnly) {
  auto image = accepted("one");
  ASSERT_TRUE(image);
  EXPECT_EQ(namesIn(image->rootfs), (std::set<std::string>{".cordon", "README", "bin", "dev", "etc",
                                                           "proc", "sbin", "sys", "tmp", "work"}));
  EXPECT_EQ(fs::read_symlink(image->rootfs + "/sbin"), "bin");
  EXPECT_TRUE(fs::exists(image->rootfs + "/sbin/tool"));
  for (const char* path : {"/", "/bin", "/README", "/etc"}) {
    unsigned long flags = mountFlags(image->rootfs + path);
    EXPECT_EQ(flags & (ST_RDONLY | ST_NOSUID | ST_NODEV), ST_RDONLY | ST_NOSUID | ST_NODEV) << path;
  }
  EXPECT_EQ(namesIn(root_ + "/images/one"), (std::set<std::string>{"README", "bin", "etc", "sbin"}))
      << "something was written into the image";
}

TEST_F(Images, AnswerIsRememberedUntilTheRootChanges) {
  auto first = remembered("one");
  ASSERT_TRUE(first);
  EXPECT_EQ(first, accepted("one"));
  ASSERT_EQ(mkfifo((root_ + "/images/one/fifo").c_str(), 0644), 0);
  expectImageRefused("/fifo: is a socket, device or fifo");
  fs::remove(root_ + "/images/one/fifo");
  auto again = accepted("one");
  ASSERT_TRUE(again);
  EXPECT_NE(first, again);
  EXPECT_NE(first->rootfs, again->rootfs);
}

TEST_F(Images, DroppedImagesUnmount) {
  size_t before = mountCount();
  accepted("one");  // its root changed just now: used and dropped
  EXPECT_EQ(mountCount(), before);
  remembered("one");
  size_t one = mountCount();
  EXPECT_GT(one, before);
  fs::create_directory(root_ + "/images/one/new");
  remembered("one");
  EXPECT_EQ(mountCount(), one + 1) << "the image before is still mounted";
}

TEST_F(Images, OnlySoManyAreRemembered) {
  size_t before = mountCount();
  // More than are remembered, each with one thing to mount.
  for (int i = 0; i < 50; ++i)
    fs::create_directories(root_ + "/images/" + std::to_string(i) + "/d");
  for (int i = 0; i < 50; ++i) remembered(std::to_string(i));
  size_t each = 2;  // the skeleton and what it binds, and the agent
  EXPECT_LE(mountCount(), before + 32 * (each + 1));
  auto last = accepted("49");
  EXPECT_EQ(last, accepted("49")) << "the last ones are";
}

TEST_F(Images, AsksForTheSameImageTogetherAreOneWalk) {
  remembered("one");
  fs::create_directory(root_ + "/images/one/new");
  settle("one");
  auto promises = kj::heapArrayBuilder<kj::Promise<Resolved>>(20);
  for (int i = 0; i < 20; ++i) promises.add(store_->resolve("one", false));
  auto answers = kj::joinPromises(promises.finish()).wait(wait_);
  for (auto& answer : answers) {
    ASSERT_TRUE(answer.is<std::shared_ptr<const Image>>());
    EXPECT_EQ(answer.get<std::shared_ptr<const Image>>(),
              answers[0].get<std::shared_ptr<const Image>>());
  }
}

TEST_F(Images, NamesAreRelativeAndPlain) {
  for (const char* name :
       {"..", ".", "../images/one", "one/..", "/etc", "one/", "/", "a//b", "one/../one", "\n"}) {
    expectRefused(name, rpc::Reason::UNKNOWN_IMAGE, "");
  }
  expectRefused(std::string("one\0x", 5), rpc::Reason::UNKNOWN_IMAGE, "");
  expectRefused(std::string(300, 'a'), rpc::Reason::UNKNOWN_IMAGE, "");
  expectRefused("two", rpc::Reason::UNKNOWN_IMAGE, "no image");
  expectRefused("one/README", rpc::Reason::IMAGE_REFUSED, "can't be opened");
  fs::create_directory_symlink("one", root_ + "/images/link");
  expectRefused("link", rpc::Reason::IMAGE_REFUSED, "can't be opened");
  fs::create_directory_symlink("/", root_ + "/images/slash");
  expectRefused("slash/etc", rpc::Reason::IMAGE_REFUSED, "can't be opened");
}

TEST_F(Images, RefusesSpecialFiles) {
  std::string odd = root_ + "/images/one/bin/odd";
  ASSERT_EQ(mknod(odd.c_str(), S_IFCHR | 0666, makedev(1, 3)), 0);
  expectImageRefused("/bin/odd: is a socket, device or fifo");
  fs::remove(odd);
  ASSERT_EQ(mknod(odd.c_str(), S_IFIFO | 0644, 0), 0);
  fs::create_directory(root_ + "/images/one/touch1");  // the root's ctime
  expectImageRefused("/bin/odd: is a socket, device or fifo");
  fs::remove(odd);
  int sock = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address = {AF_UNIX, {}};
  snprintf(address.sun_path, sizeof address.sun_path, "%s", odd.c_str());
  ASSERT_EQ(bind(sock, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  close(sock);
  fs::create_directory(root_ + "/images/one/touch2");
  expectImageRefused("/bin/odd: is a socket, device or fifo");
}

TEST_F(Images, RefusesLinkedDevProcSys) {
  for (const char* name : {"dev", "proc", "sys"}) {
    fs::create_directory_symlink("/etc", root_ + "/images/one/" + name);
    expectImageRefused(std::string("/") + name + ": is a symbolic link");
    fs::remove(root_ + "/images/one/" + name);
  }
}

TEST_F(Images, RefusesWhatOthersCanWrite) {
  std::string tool = root_ + "/images/one/bin/tool";
  chmod(tool.c_str(), 0666);
  expectImageRefused("/bin/tool: is not root's alone");
  chmod(tool.c_str(), 0644);
  ASSERT_EQ(chown(tool.c_str(), 1000, 0), 0);
  fs::create_directory(root_ + "/images/one/touch1");
  expectImageRefused("/bin/tool: is not root's alone");
  ASSERT_EQ(chown(tool.c_str(), 0, 0), 0);
  chmod((root_ + "/images/one/etc").c_str(), 01777);
  fs::create_directory(root_ + "/images/one/touch2");
  expectImageRefused("/etc: is not root's alone");
  chmod((root_ + "/images/one/etc").c_str(), 0755);
  chmod((root_ + "/images/one").c_str(), 0777);
  expectImageRefused("not root's alone");
  chmod((root_ + "/images/one").c_str(), 0755);
  EXPECT_TRUE(accepted("one"));
  chmod((root_ + "/images").c_str(), 0777);
  expectImageRefused("not root's alone");
}

// What only root can reach may have a /tmp and files of its own users.
TEST_F(Images, AClosedDirectoryMayHoldLooseModes) {
  chmod((root_ + "/images/one/bin/tool").c_str(), 0666);
  chmod((root_ + "/images").c_str(), 0700);
  EXPECT_TRUE(accepted("one"));
  ASSERT_EQ(mkfifo((root_ + "/images/one/fifo").c_str(), 0644), 0);
  expectImageRefused("/fifo: is a socket, device or fifo");
}

TEST_F(Images, RefusesWhatIsMountedInside) {
  std::string inside = root_ + "/images/one/etc";
  ASSERT_EQ(mount("tmpfs", inside.c_str(), "tmpfs", 0, "mode=755"), 0);
  expectImageRefused("/etc: another file system is mounted there");
  umount2(inside.c_str(), MNT_DETACH);
  // The same file system, bound, and only a file.
  std::string tool = root_ + "/images/one/bin/tool";
  ASSERT_EQ(mount((root_ + "/vm-agent").c_str(), tool.c_str(), nullptr, MS_BIND, nullptr), 0);
  fs::create_directory(root_ + "/images/one/touch");
  expectImageRefused("/bin/tool: another file system is mounted there");
  umount2(tool.c_str(), MNT_DETACH);
}

TEST_F(Images, RefusesAWritableOrMissingAgent) {
  chmod(agent_.c_str(), 0777);
  expectImageRefused("vm-agent");
  expectRefused("", rpc::Reason::IMAGE_REFUSED, "vm-agent");
  chmod(agent_.c_str(), 0700);
  expectRefused("", rpc::Reason::IMAGE_REFUSED, "can't be executed by everyone");
  fs::remove(agent_);
  expectRefused("", rpc::Reason::IMAGE_REFUSED, "no vm-agent");
}

TEST_F(Images, WalkIsBounded) {
  int fd = ::open((root_ + "/images/one").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  kj::AutoCloseFd root(fd);
  WalkLimits few;
  few.entries = 3;
  EXPECT_NE(walkImage(root, true, port_.getTimer(), few).wait(wait_).refusal.find("too many"),
            std::string::npos);
  std::string path = root_ + "/images/one";
  for (int i = 0; i < 10; ++i) fs::create_directory(path += "/d");
  WalkLimits shallow;
  shallow.depth = 5;
  EXPECT_NE(walkImage(root, true, port_.getTimer(), shallow).wait(wait_).refusal.find("deeply"),
            std::string::npos);
  WalkResult whole = walkImage(root, true, port_.getTimer()).wait(wait_);
  EXPECT_EQ(whole.refusal, "");
  EXPECT_EQ(whole.entries, 16u);
}

// The loop's fds are looked at while a long walk goes on.
TEST_F(Images, WalkLeavesTheLoopToOthers) {
  for (int d = 0; d < 20; ++d) {
    std::string directory = root_ + "/images/one/d" + std::to_string(d);
    fs::create_directory(directory);
    for (int f = 0; f < 1000; ++f) std::ofstream(directory + "/" + std::to_string(f));
  }
  kj::AutoCloseFd root(::open((root_ + "/images/one").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  kj::AutoCloseFd mine(ends[0]), other(ends[1]);
  kj::UnixEventPort::FdObserver observer(port_, mine, kj::UnixEventPort::FdObserver::OBSERVE_READ);
  bool walked = false, readable = false, readableFirst = false;
  auto walk = walkImage(root, true, port_.getTimer())
                  .then([&](WalkResult result) {
                    walked = true;
                    EXPECT_EQ(result.refusal, "");
                    EXPECT_GT(result.entries, 20'000u);
                  })
                  .eagerlyEvaluate(nullptr);
  auto watch = observer.whenBecomesReadable()
                   .then([&]() {
                     readable = true;
                     readableFirst = !walked;
                   })
                   .eagerlyEvaluate(nullptr);
  ASSERT_EQ(write(other, "x", 1), 1);
  walk.wait(wait_);
  watch.wait(wait_);
  EXPECT_TRUE(readable);
  EXPECT_TRUE(readableFirst) << "the walk held up the loop from begin to end";
}

// In a child, since there is no way back.
TEST(ImagesWithoutRoot, AreRefusedClearly) {
  pid_t child = fork();
  if (child == 0) {
    if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) _exit(2);
    kj::UnixEventPort port;
    kj::EventLoop loop(port);
    kj::WaitScope wait(loop);
    auto store = ImageStore::open("/nonexistent/skeletons", {}, "/none", port.getTimer());
    auto answer = store->resolve("", false).wait(wait);
    bool refused = answer.is<ImageRefusal>() &&
                   answer.get<ImageRefusal>().detail.find("root") != std::string::npos;
    store->removeAll();
    _exit(refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace cordon::runtimes
