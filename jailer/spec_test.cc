#include "jailer/spec.h"

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <kj/io.h>
#include <poll.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <vector>

#include "jailer/report.h"

extern char** environ;

namespace cordon::jailer {
namespace {

using Change = std::function<void(JailSpec::Builder)>;

void fillGood(JailSpec::Builder spec) {
  spec.setVersion(SPEC_VERSION);
  spec.setHostname("sb-test");
  spec.setIdFirst(1879048192);
  spec.setIdCount(65536);
  spec.setAgentUid(65000);
  spec.setAgentGid(65000);
  spec.setFiles(4096);
  spec.setCgroups(CgroupEntry::JOIN_TASKS);
  spec.setCgroupFds(4);
  auto mount = spec.initMounts(1)[0];
  mount.setKind(MountKind::TMPFS);
  mount.setWhere("work");
  auto image = spec.initImage(2);
  image[0].setDirectory(true);
  image[1].setWhere("usr");
  image[1].setDirectory(true);
}

// All of it: a std::string converts by c_str().
kj::StringPtr whole(const std::string& text) {
  return {text.data(), text.size()};
}

std::string wrong(const Change& change) {
  capnp::MallocMessageBuilder message;
  auto spec = message.initRoot<JailSpec>();
  fillGood(spec);
  change(spec);
  const char* what = whatIsWrong(spec.asReader());
  return what == nullptr ? "" : what;
}

std::string wrongMount(const std::function<void(Mount::Builder)>& change) {
  return wrong([&](JailSpec::Builder spec) { change(spec.getMounts()[0]); });
}

TEST(JailSpecTest, EveryFieldHasItsRange) {
  EXPECT_EQ(wrong([](auto) {}), "");
  EXPECT_EQ(wrong([](auto s) { s.setVersion(2); }), "version");
  for (const std::string& name :
       std::vector<std::string>{"", "a b", "a/b", "a\nb", std::string(65, 'a')}) {
    EXPECT_EQ(wrong([&](auto s) { s.setHostname(name); }), "hostname") << name;
  }
  EXPECT_EQ(wrong([](auto s) { s.setIdCount(1); }), "idCount");
  // The host's own ids, and a range past the last id.
  for (uint32_t first : {0u, 1000u, 65535u, UINT32_MAX, UINT32_MAX - 65535}) {
    EXPECT_EQ(wrong([&](auto s) { s.setIdFirst(first); }), "idFirst") << first;
  }
  for (uint32_t id : {0u, 65536u, UINT32_MAX}) {
    EXPECT_EQ(wrong([&](auto s) { s.setAgentUid(id); }), "agent's ids");
    EXPECT_EQ(wrong([&](auto s) { s.setAgentGid(id); }), "agent's ids");
  }
  EXPECT_EQ(wrong([](auto s) { s.setFiles(0); }), "files");
  EXPECT_EQ(wrong([](auto s) { s.setFiles(uint64_t{1} << 40); }), "files");
  for (uint32_t fds : {0u, 9u, UINT32_MAX}) {
    EXPECT_EQ(wrong([&](auto s) { s.setCgroupFds(fds); }), "cgroupFds") << fds;
  }
  EXPECT_EQ(wrong([](auto s) { s.setCgroups(CgroupEntry::BORN_INSIDE); }), "cgroupFds");
  EXPECT_EQ(wrong([](auto s) { s.setCgroups(static_cast<CgroupEntry>(7)); }), "cgroups");
  EXPECT_EQ(wrong([](auto s) { s.initMounts(MAX_MOUNTS + 1); }), "mounts");
}

TEST(JailSpecTest, MountsStayBeneathTheRoot) {
  for (const char* where : {"", "/", "/proc", "..", "a/..", "../a", "a/../b", ".", "./a", "a/",
                            "a//b", "a\nb", "a b", "work\x01"}) {
    EXPECT_EQ(wrongMount([&](auto m) { m.setWhere(where); }), "mount") << where;
  }
  EXPECT_EQ(wrongMount([](auto m) { m.setWhere(std::string(200, 'a')); }), "mount");
  EXPECT_EQ(wrongMount([](auto m) { m.setWhere("dev/shm"); }), "");
  EXPECT_EQ(wrongMount([](auto m) { m.setKind(static_cast<MountKind>(99)); }), "mount");
  EXPECT_EQ(wrongMount([](auto m) { m.setTarget("x"); }), "mount") << "only links have one";
  auto mask = [](const char* where) {
    return wrongMount([&](auto m) {
      m.setKind(MountKind::MASK);
      m.setWhere(where);
    });
  };
  EXPECT_EQ(mask("usr/a name"), "");
  EXPECT_EQ(mask("usr/../etc"), "mount");
}

TEST(JailSpecTest, AnImageIsARootAndPlainPaths) {
  EXPECT_EQ(wrong([](auto s) { s.initImage(0); }), "image");
  EXPECT_EQ(wrong([](auto s) { s.initImage(MAX_IMAGE_MOUNTS + 1); }), "image");
  EXPECT_EQ(wrong([](auto s) { s.getImage()[0].setWhere("usr"); }), "image mount");
  EXPECT_EQ(wrong([](auto s) { s.getImage()[0].setDirectory(false); }), "image mount");
  for (const char* where : {"", "/", "/usr", "..", "a/../b", "./a", "a//b", "a/"}) {
    EXPECT_EQ(wrong([&](auto s) { s.getImage()[1].setWhere(where); }), "image mount") << where;
  }
  // Named by whoever made the image.
  EXPECT_EQ(wrong([](auto s) { s.getImage()[1].setWhere("a name\n+\xff"); }), "");
  EXPECT_EQ(wrong([](auto s) { s.getImage()[1].setWhere(std::string(1025, 'a')); }), "image mount");
  EXPECT_EQ(wrong([](auto s) { s.getImage()[1].setOwners(static_cast<Owners>(3)); }), "owners");
}

TEST(JailSpecTest, AWritableRootHasASize) {
  auto both = [](uint64_t bytes, uint64_t inodes) {
    return wrong([&](auto s) {
      s.setRootBytes(bytes);
      s.setRootInodes(inodes);
    });
  };
  EXPECT_EQ(both(1 << 20, 256), "");
  EXPECT_EQ(both(0, 256), "rootInodes");
  // 0 would be a tmpfs without a limit.
  EXPECT_EQ(both(1 << 20, 0), "rootInodes");
}

TEST(JailSpecTest, WhatACopierIsGiven) {
  auto copier = [](const Change& change) {
    return wrong([&](auto s) {
      s.setProgram(Program::SAVER);
      s.setExtraFds(7);
      s.setFileBytes(1 << 20);
      change(s);
    });
  };
  EXPECT_EQ(copier([](auto) {}), "");
  EXPECT_EQ(copier([](auto s) { s.setExtraFds(9); }), "extraFds");
  EXPECT_EQ(copier([](auto s) { s.setProgram(static_cast<Program>(3)); }), "program");
  // What a restore writes may be longer than what it takes.
  EXPECT_EQ(copier([](auto s) { s.setProgram(Program::RESTORER); }), "fileBytes");
  EXPECT_EQ(copier([](auto s) { s.setLayersWritable(true); }), "layers of a copier");
  EXPECT_EQ(copier([](auto s) {
              s.setRootBytes(1 << 20);
              s.setRootInodes(256);
            }),
            "layers of a copier");
  // vm-agent gets nothing.
  EXPECT_EQ(wrong([](auto s) { s.setExtraFds(1); }), "extraFds");
  EXPECT_EQ(wrong([](auto s) { s.setFileBytes(1); }), "fileBytes");
  EXPECT_EQ(wrong([](auto s) { s.setLayersWritable(true); }), "");
}

TEST(JailSpecTest, DevicesAreTheSix) {
  for (const char* good :
       {"dev/null", "dev/zero", "dev/full", "dev/random", "dev/urandom", "dev/tty"}) {
    EXPECT_EQ(wrongMount([&](auto m) {
                m.setKind(MountKind::DEVICE);
                m.setWhere(good);
              }),
              "");
  }
  for (const char* bad :
       {"dev/kvm", "dev/mem", "dev/sda", "null", "dev/null/x", "dev/nullx", "etc/null"}) {
    EXPECT_EQ(wrongMount([&](auto m) {
                m.setKind(MountKind::DEVICE);
                m.setWhere(bad);
              }),
              "mount")
        << bad;
  }
}

TEST(JailSpecTest, OptionsAreWords) {
  auto option = [](const char* key, const char* value) {
    return wrongMount([&](auto m) {
      auto o = m.initOptions(1)[0];
      o.setKey(key);
      o.setValue(value);
    });
  };
  EXPECT_EQ(option("size", "65536"), "");
  EXPECT_EQ(option("newinstance", ""), "");
  for (auto [key, value] :
       {std::pair{"", "1"}, {"a,b", "1"}, {"size", "1,uid=0"}, {"size", "/x"}, {"a b", "1"}}) {
    EXPECT_EQ(option(key, value), "mount") << key << "=" << value;
  }
  EXPECT_EQ(wrongMount([](auto m) { m.initOptions(9); }), "mount");
}

TEST(JailSpecTest, LinksHaveATargetOfPlainNames) {
  auto link = [](const std::string& target) {
    return wrongMount([&](auto m) {
      m.setKind(MountKind::LINK);
      m.setWhere("dev/fd");
      m.setTarget(whole(target));
    });
  };
  EXPECT_EQ(link("/proc/self/fd"), "");
  for (const std::string& bad :
       {std::string(), std::string("a b"), std::string("a\nb"), std::string(129, 'a'),
        std::string("a\0b", 3), std::string("a\xff")}) {
    EXPECT_EQ(link(bad), "mount") << bad;
  }
}

// Text may hold a NUL in the middle, where a C string ends: what is checked would
// be another than what is used.
TEST(JailSpecTest, NoTextHidesBehindANul) {
  const std::string hidden("dev\0/../../etc", 14);
  EXPECT_EQ(wrong([&](auto s) { s.setHostname(whole(hidden)); }), "hostname");
  EXPECT_EQ(wrongMount([&](auto m) { m.setWhere(whole(hidden)); }), "mount");
  EXPECT_EQ(wrongMount([&](auto m) {
              m.setKind(MountKind::DEVICE);
              m.setWhere(whole(std::string("dev/null\0", 9)));
            }),
            "mount");
  EXPECT_EQ(wrongMount([&](auto m) { m.initOptions(1)[0].setKey(whole(hidden)); }), "mount");
  EXPECT_EQ(wrongMount([&](auto m) {
              auto option = m.initOptions(1)[0];
              option.setKey("size");
              option.setValue(whole(std::string("1\0002", 3)));
            }),
            "mount");
}

// The steps read it again and again, and nobody catches there: the longest that
// is accepted must be far from the limit of what may be read.
TEST(JailSpecTest, TheLongestCanBeReadManyTimes) {
  capnp::MallocMessageBuilder message;
  auto spec = message.initRoot<JailSpec>();
  fillGood(spec);
  spec.setHostname(std::string(64, 'h'));
  auto mounts = spec.initMounts(128);  // as many as fit with the longest of everything
  for (auto mount : mounts) {
    mount.setKind(MountKind::TMPFS);
    mount.setWhere(std::string(128, 'w'));
    auto options = mount.initOptions(8);
    for (auto option : options) {
      option.setKey(std::string(32, 'k'));
      option.setValue(std::string(32, 'v'));
    }
  }
  // Too long for the jailer as it stands; a hostile writer lets pointers share.
  auto words = capnp::messageToFlatArray(message);
  capnp::ReaderOptions options;
  options.traversalLimitInWords = 8 * MAX_SPEC_BYTES / sizeof(capnp::word);
  capnp::FlatArrayMessageReader reader(words, options);
  auto read = reader.getRoot<JailSpec>();
  ASSERT_EQ(whatIsWrong(read), nullptr);
  size_t bytes = 0;
  // As mounts.cc does: three times the place, twice each option.
  for (auto mount : read.getMounts()) {
    for (int i = 0; i < 3; ++i) bytes += mount.getWhere().size();
    for (auto option : mount.getOptions()) {
      bytes += 2 * option.getValue().size() + option.getValue().size() + option.getKey().size();
    }
  }
  EXPECT_GT(bytes, 100'000u);
}

// ---- the program itself, given what it must refuse

class JailerTest : public ::testing::Test {
 public:
  ~JailerTest() noexcept override {}

 protected:
  void SetUp() override {
    const char* path = getenv("CORDON_JAILER");
    ASSERT_NE(path, nullptr);
    program_ = path;
  }

  kj::AutoCloseFd memfd(kj::ArrayPtr<const kj::byte> bytes, int seals) {
    kj::AutoCloseFd file(memfd_create("spec", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    kj::FdOutputStream(file.get()).write(bytes.begin(), bytes.size());
    if (seals != 0) fcntl(file, F_ADD_SEALS, seals);
    return file;
  }

  // Runs it with this as its spec and /dev/null as everything else; the report.
  Report run(int spec) {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    kj::AutoCloseFd ours(ends[0]), theirs(ends[1]);
    kj::AutoCloseFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    // Above all targets, so that none is overwritten.
    int high[] = {fcntl(spec, F_DUPFD_CLOEXEC, 100), fcntl(theirs, F_DUPFD_CLOEXEC, 100)};
    for (int fd = 0; fd < kFirstCgroupFd + 4; ++fd) {
      if (fd == 1 || fd == 2) continue;
      int source = fd == kSpecFd ? high[0] : fd == kStatusFd ? high[1] : null.get();
      posix_spawn_file_actions_adddup2(&actions, source, fd);
    }
    char name[] = "cordon-jailer";
    char* argv[] = {name, nullptr};
    char* env[] = {nullptr};
    pid_t child = 0;
    EXPECT_EQ(posix_spawn(&child, program_.c_str(), &actions, nullptr, argv, env), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(high[0]);
    close(high[1]);
    theirs = nullptr;
    Report report;
    report.magic = 0;
    EXPECT_EQ(read(ours, &report, sizeof report), static_cast<ssize_t>(sizeof report));
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1) << status;
    return report;
  }

  void expectRefused(int spec, int error) {
    Report report = run(spec);
    EXPECT_EQ(report.magic, Report::kMagic);
    EXPECT_EQ(report.kind, Report::kFailed);
    EXPECT_STREQ(stepName(static_cast<Step>(report.step)), "spec");
    EXPECT_EQ(report.error, error);
  }

  static constexpr int kSealed = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;
  std::string program_;
};

TEST_F(JailerTest, ASpecThatCouldStillChangeIsRefused) {
  capnp::MallocMessageBuilder message;
  fillGood(message.initRoot<JailSpec>());
  auto words = capnp::messageToFlatArray(message);
  expectRefused(memfd(words.asBytes(), 0), EPERM);
  expectRefused(memfd(words.asBytes(), F_SEAL_SHRINK | F_SEAL_GROW), EPERM);
  // Each seal but one.
  for (int missing : {F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_WRITE}) {
    expectRefused(memfd(words.asBytes(), kSealed & ~missing), EPERM);
  }
  // F_SEAL_FUTURE_WRITE leaves the writable mappings that there are.
  constexpr int kFutureWrite = 0x10;
  expectRefused(memfd(words.asBytes(), F_SEAL_SHRINK | F_SEAL_GROW | kFutureWrite), EPERM);
}

// Nothing else can be sealed: a file, a device, a directory, a socket, a pipe.
TEST_F(JailerTest, ASpecThatIsNoMemfdIsRefused) {
  int ends[2], pair[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  kj::AutoCloseFd readEnd(ends[0]), writeEnd(ends[1]);
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  kj::AutoCloseFd one(pair[0]), other(pair[1]);
  kj::AutoCloseFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  kj::AutoCloseFd directory(open("/", O_RDONLY | O_CLOEXEC));
  kj::AutoCloseFd path(open("/", O_PATH | O_CLOEXEC));
  kj::AutoCloseFd file(open(program_.c_str(), O_RDONLY | O_CLOEXEC));
  for (int fd : {readEnd.get(), writeEnd.get(), one.get(), null.get(), directory.get(), path.get(),
                 file.get()}) {
    Report report = run(fd);
    EXPECT_EQ(report.kind, Report::kFailed);
    EXPECT_STREQ(stepName(static_cast<Step>(report.step)), "spec");
  }
}

// A good message, cut at every word, and one that claims more than is there.
TEST_F(JailerTest, ATruncatedSpecIsRefused) {
  capnp::MallocMessageBuilder message;
  fillGood(message.initRoot<JailSpec>());
  auto words = capnp::messageToFlatArray(message);
  for (size_t keep = 1; keep < words.size(); ++keep) {
    Report report = run(memfd(words.slice(0, keep).asBytes(), kSealed));
    EXPECT_EQ(report.kind, Report::kFailed) << keep;
    EXPECT_STREQ(stepName(static_cast<Step>(report.step)), "spec") << keep;
  }
}

// Pointers to themselves, lists of nothing without end, far pointers in a ring.
TEST_F(JailerTest, PointerBombsAreRefused) {
  auto bomb = [&](std::vector<uint64_t> segment) {
    std::vector<uint64_t> words = {segment.size() << 32};  // one segment, so many words
    words.insert(words.end(), segment.begin(), segment.end());
    auto bytes = kj::arrayPtr(reinterpret_cast<const kj::byte*>(words.data()), words.size() * 8);
    Report report = run(memfd(bytes, kSealed));
    EXPECT_EQ(report.kind, Report::kFailed);
    EXPECT_STREQ(stepName(static_cast<Step>(report.step)), "spec");
  };
  // The root is a struct at itself: data and pointers of 65535 words.
  bomb({0xffffffff00000000 | 0xfffffffc});
  // A struct of 5 data words and 2 pointers (as a JailSpec is), whose list of
  // mounts claims 2^29 - 1 elements of no size, then of 8 bytes.
  for (uint64_t size : {0ull, 5ull, 6ull}) {
    bomb({(uint64_t{2} << 48) | (uint64_t{5} << 32), 1, 0, 0, 0, 0, 0,
          (uint64_t{0xfffffff8} << 32) | (size << 32) | 1});
  }
  // A far pointer to itself, and a double one.
  bomb({(uint64_t{0} << 32) | 2});
  bomb({(uint64_t{0} << 32) | 6});
}

TEST_F(JailerTest, GarbageIsRefusedBeforeAnyEffect) {
  expectRefused(memfd(nullptr, kSealed), EMSGSIZE);
  kj::byte odd[] = {1, 2, 3};
  expectRefused(memfd(odd, kSealed), EMSGSIZE);
  std::string large(MAX_SPEC_BYTES + 8, '\0');
  expectRefused(memfd(kj::StringPtr(large.c_str(), large.size()).asBytes(), kSealed), EMSGSIZE);
  std::string wild(4096, '\xff');
  expectRefused(memfd(kj::StringPtr(wild.c_str(), wild.size()).asBytes(), kSealed), EBADMSG);
  capnp::MallocMessageBuilder message;
  auto spec = message.initRoot<JailSpec>();
  fillGood(spec);
  spec.setIdFirst(0);
  auto words = capnp::messageToFlatArray(message);
  expectRefused(memfd(words.asBytes(), kSealed), EINVAL);
}

}  // namespace
}  // namespace cordon::jailer
