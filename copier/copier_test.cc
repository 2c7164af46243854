// Save and restore on plain directories; what overlayfs does is in
// tests/integration/test_snapshots.py.
#include <fcntl.h>
#include <ftw.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <thread>

#include "copier/files.h"
#include "copier/restore.h"
#include "copier/save.h"

namespace cordon::copier {
namespace {

constexpr Bounds kRoomy = {64 << 20, 32 << 20, uint64_t{1} << 40, 10'000, 64, 1 << 20};

class CopierTest : public testing::Test {
 protected:
  CopierTest() {
    char name[] = "/tmp/copier-test-XXXXXX";
    top_ = mkdtemp(name);
    for (const char* each :
         {"work", "tmp", "work2", "tmp2", "upper", "upper/u0", "lower", "merged", "merged2"}) {
      mkdir(path(each).c_str(), 0755);
    }
    umask(0);
    archive_ = File(memfd_create("archive", MFD_CLOEXEC));
  }
  ~CopierTest() override {
    nftw(
        top_.c_str(),
        [](const char* name, const struct stat*, int, FTW*) { return ::remove(name); }, 64,
        FTW_DEPTH | FTW_PHYS);
  }

  std::string path(const std::string& name) const { return top_ + "/" + name; }
  File open(const std::string& name) const {
    return File(::open(path(name).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name)) << text;
  }
  std::string read(const std::string& name) const {
    std::ifstream file(path(name));
    return {std::istreambuf_iterator<char>(file), {}};
  }
  struct stat look(const std::string& name) const {
    struct stat status = {};
    EXPECT_EQ(0, lstat(path(name).c_str(), &status)) << name;
    return status;
  }
  bool exists(const std::string& name) const {
    struct stat status;
    return lstat(path(name).c_str(), &status) == 0;
  }

  Report saveAll(bool withRoot = false, const Bounds& bounds = kRoomy) {
    Report report;
    File work = open("work"), tmp = open("tmp");
    File merged = open("merged"), lower = open("lower"), upper = open("upper");
    Layers layers{work.get(), tmp.get(), merged.get(), lower.get(), upper.get()};
    Writer out(archive_.get(), bounds);
    save(layers, withRoot ? std::vector<Root>{{0, ""}} : std::vector<Root>{}, bounds, out, report);
    out.finish(report);
    return report;
  }
  void restoreAll(const Bounds& bounds = kRoomy) {
    Report report;
    File work = open("work2"), tmp = open("tmp2"), merged = open("merged2");
    restore(archive_.get(), {work.get(), tmp.get(), merged.get()}, bounds, report);
  }
  Stop stopOf(const std::function<void()>& action) {
    try {
      action();
    } catch (const Stop& stop) {
      return stop;
    }
    ADD_FAILURE() << "it went through";
    return {Outcome::kDone};
  }

  std::string top_;
  File archive_;
};

TEST_F(CopierTest, ContentModesTimesLinksAndOddNames) {
  write("work/plain", "hello");
  chmod(path("work/plain").c_str(), 04751);
  mkdir(path("work/d").c_str(), 0700);
  std::string odd = "work/d/new\nline\xff\x01";
  write(odd, "odd");
  symlink("../no/such", path("work/s").c_str());
  link(path("work/plain").c_str(), path("work/d/other").c_str());
  mkfifo(path("work/p").c_str(), 0620);
  timespec times[2] = {{7, 8}, {1234567, 89}};
  utimensat(AT_FDCWD, path("work/d").c_str(), times, 0);
  utimensat(AT_FDCWD, path("work/s").c_str(), times, AT_SYMLINK_NOFOLLOW);
  write("tmp/t", "t");

  auto report = saveAll();
  EXPECT_EQ(0u, report.skippedSockets);
  verify(archive_.get(), report.archiveBytes, report.sha256);
  restoreAll();

  EXPECT_EQ("hello", read("work2/plain"));
  EXPECT_EQ("odd", read("work2/d/new\nline\xff\x01"));
  EXPECT_EQ("t", read("tmp2/t"));
  auto plain = look("work2/plain"), other = look("work2/d/other");
  EXPECT_EQ(plain.st_ino, other.st_ino);
  EXPECT_EQ(04751u, plain.st_mode & 07777u);
  auto d = look("work2/d");
  EXPECT_EQ(0700u, d.st_mode & 07777u);
  EXPECT_EQ(1234567, d.st_mtim.tv_sec);
  EXPECT_EQ(89, d.st_mtim.tv_nsec);
  EXPECT_EQ(1234567, look("work2/s").st_mtim.tv_sec);
  char target[64] = {};
  ASSERT_GT(readlink(path("work2/s").c_str(), target, sizeof(target)), 0);
  EXPECT_STREQ("../no/such", target);
  EXPECT_TRUE(S_ISFIFO(look("work2/p").st_mode));
  EXPECT_EQ(0620u, look("work2/p").st_mode & 07777u);
}

TEST_F(CopierTest, HolesStayHoles) {
  File file(::open(path("work/sparse").c_str(), O_RDWR | O_CREAT, 0644));
  ASSERT_EQ(1, pwrite(file.get(), "x", 1, 1 << 20));
  ASSERT_EQ(0, ftruncate(file.get(), off_t{1} << 32));
  auto report = saveAll();
  EXPECT_LT(report.archiveBytes, 100'000u);
  EXPECT_EQ(uint64_t{1} << 32, report.logicalBytes);
  restoreAll();
  auto status = look("work2/sparse");
  EXPECT_EQ(off_t{1} << 32, status.st_size);
  EXPECT_LT(status.st_blocks, 1000);
  File again(::open(path("work2/sparse").c_str(), O_RDONLY));
  char byte = 0;
  EXPECT_EQ(1, pread(again.get(), &byte, 1, 1 << 20));
  EXPECT_EQ('x', byte);
}

TEST_F(CopierTest, SocketsAreSkippedAndCounted) {
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  snprintf(name.sun_path, sizeof(name.sun_path), "%s", path("work/sock").c_str());
  File server(socket(AF_UNIX, SOCK_STREAM, 0));
  ASSERT_EQ(0, bind(server.get(), reinterpret_cast<sockaddr*>(&name), sizeof(name)));
  EXPECT_EQ(1u, saveAll().skippedSockets);
  restoreAll();
  EXPECT_FALSE(exists("work2/sock"));
}

TEST_F(CopierTest, WhatTheMergedViewLacksIsRemoved) {
  // The same lower tree, twice: below the old and the new sandbox.
  for (const char* base : {"lower", "merged2"}) {
    std::string b = base;
    mkdir(path(b + "/gone").c_str(), 0755);
    write(b + "/gone/deep", "1");
    mkdir(path(b + "/emptied").c_str(), 0755);
    write(b + "/emptied/was", "2");
    write(b + "/file", "3");
    mkdir(path(b + "/becomes-file").c_str(), 0755);
    write(b + "/becomes-file/x", "4");
    write(b + "/stays", "5");
  }
  for (const char* view : {"upper/u0", "merged"}) {
    std::string v = view;
    mkdir(path(v + "/emptied").c_str(), 0711);
    write(v + "/emptied/new", "n");
    mkdir(path(v + "/file").c_str(), 0755);
    write(v + "/becomes-file", "now");
  }
  write("merged/stays", "5");
  saveAll(true);
  restoreAll();
  EXPECT_FALSE(exists("merged2/gone"));
  EXPECT_FALSE(exists("merged2/emptied/was"));
  EXPECT_EQ("n", read("merged2/emptied/new"));
  EXPECT_EQ(0711u, look("merged2/emptied").st_mode & 07777u);
  EXPECT_TRUE(S_ISDIR(look("merged2/file").st_mode));
  EXPECT_EQ("now", read("merged2/becomes-file"));
  EXPECT_EQ("5", read("merged2/stays"));
}

TEST_F(CopierTest, BoundsAreNamed) {
  write("work/a", std::string(100'000, 'a'));
  write("work/b", "b");
  link(path("work/b").c_str(), path("work/c").c_str());
  std::string deep = "work";
  for (int i = 0; i < 10; ++i) mkdir(path(deep += "/d").c_str(), 0755);
  auto exceeding = [&](auto change) {
    Bounds bounds = kRoomy;
    change(bounds);
    auto stop = stopOf([&] { saveAll(false, bounds); });
    EXPECT_EQ(Outcome::kTooLarge, stop.outcome);
    return stop.bound;
  };
  EXPECT_EQ(Bound::kBytes, exceeding([](Bounds& b) { b.archiveBytes = 50'000; }));
  EXPECT_EQ(Bound::kBytes, exceeding([](Bounds& b) { b.dataBytes = 50'000; }));
  EXPECT_EQ(Bound::kLogicalBytes, exceeding([](Bounds& b) { b.logicalBytes = 50'000; }));
  EXPECT_EQ(Bound::kEntries, exceeding([](Bounds& b) { b.entries = 5; }));
  EXPECT_EQ(Bound::kDepth, exceeding([](Bounds& b) { b.depth = 5; }));
  EXPECT_EQ(Bound::kLinks, exceeding([](Bounds& b) { b.linkTableBytes = 10; }));
}

TEST_F(CopierTest, EveryFlippedByteIsSeen) {
  write("work/a", "content");
  auto report = saveAll();
  for (uint64_t at = 0; at < report.archiveBytes; at += 7) {
    char byte;
    ASSERT_EQ(1, pread(archive_.get(), &byte, 1, static_cast<off_t>(at)));
    char flipped = static_cast<char>(byte ^ 1);
    ASSERT_EQ(1, pwrite(archive_.get(), &flipped, 1, static_cast<off_t>(at)));
    auto stop = stopOf([&] { verify(archive_.get(), report.archiveBytes, report.sha256); });
    EXPECT_EQ(Outcome::kDamaged, stop.outcome);
    ASSERT_EQ(1, pwrite(archive_.get(), &byte, 1, static_cast<off_t>(at)));
  }
  verify(archive_.get(), report.archiveBytes, report.sha256);
  ASSERT_EQ(0, ftruncate(archive_.get(), static_cast<off_t>(report.archiveBytes - 1)));
  EXPECT_EQ(Outcome::kDamaged,
            stopOf([&] { verify(archive_.get(), report.archiveBytes, report.sha256); }).outcome);
  EXPECT_EQ(Outcome::kDamaged, stopOf([&] { restoreAll(); }).outcome);
}

TEST_F(CopierTest, SwapsWhileItCopiesLeadNowhereElse) {
  // As if nothing were frozen: a directory that is a link to elsewhere every other
  // moment, a file that is a fifo, one that shrinks.
  mkdir(path("outside").c_str(), 0755);
  write("outside/f", "SECRETSECRET");
  mkdir(path("work/a").c_str(), 0755);
  write("work/a/f", std::string(100'000, 'x'));
  symlink(path("outside").c_str(), path("work/b").c_str());
  mkfifo(path("work/p").c_str(), 0600);
  write("work/q", "plain");
  std::atomic<bool> stop = false;
  std::thread swapper([&] {
    while (!stop) {
      renameat2(AT_FDCWD, path("work/a").c_str(), AT_FDCWD, path("work/b").c_str(),
                RENAME_EXCHANGE);
      renameat2(AT_FDCWD, path("work/p").c_str(), AT_FDCWD, path("work/q").c_str(),
                RENAME_EXCHANGE);
      for (const char* f : {"work/a/f", "work/b/f"}) {
        if (::truncate(path(f).c_str(), 10) == 0) break;
      }
    }
  });
  unsigned whole = 0;
  for (int i = 0; i < 300; ++i) {
    archive_ = File(memfd_create("archive", MFD_CLOEXEC));
    try {
      saveAll();
      ++whole;
    } catch (const Stop& stopped) {
      EXPECT_TRUE(stopped.outcome == Outcome::kChanged || stopped.outcome == Outcome::kFailed);
    }
    std::string content(1 << 20, '\0');
    ssize_t n = pread(archive_.get(), content.data(), content.size(), 0);
    content.resize(static_cast<size_t>(std::max<ssize_t>(n, 0)));
    EXPECT_EQ(std::string::npos, content.find("SECRET"));
  }
  stop = true;
  swapper.join();
  EXPECT_EQ("SECRET", read("outside/f").substr(0, 6));
  EXPECT_GT(whole, 0u);
}

TEST_F(CopierTest, LinksOfAnArchiveLeadNowhereElse) {
  // A directory replaced by a link while nobody should be there.
  mkdir(path("outside").c_str(), 0755);
  mkdir(path("work/d").c_str(), 0755);
  write("work/d/f", "f");
  saveAll();
  symlink(path("outside").c_str(), path("work2/d").c_str());
  restoreAll();
  EXPECT_FALSE(exists("outside/f"));
  EXPECT_TRUE(S_ISDIR(look("work2/d").st_mode));
  EXPECT_EQ("f", read("work2/d/f"));
}

}  // namespace
}  // namespace cordon::copier
