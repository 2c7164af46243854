#include "broker/records.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <kj/debug.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <random>

#include "broker/testing_directory.h"

namespace cordon::broker {
namespace {

using testing::TemporaryDirectory;

SandboxRecord sample(const std::string& name = "sb-abcdefghij") {
  SandboxRecord r;
  r.name = name;
  r.ownerUid = 1234;
  r.runtime = "runc";
  r.image = "host-usr";
  r.tokenHash = std::string(64, 'a');
  r.directory = "/run/cordon/ab12/sandboxes/" + name;
  r.cgroup = "/cordon/ab12/" + name;
  r.idSlot = 5;
  r.idFirst = 0x70050000;
  r.idCount = 65536;
  r.createdUnixMs = 1'700'000'000'000;
  r.createdBootMs = 77;
  r.limits.memoryBytes = 1 << 27;
  r.limits.pids = 64;
  r.limits.outputBytes = 9;
  r.ttlMs = 1000;
  r.idleMs = 2000;
  r.state = rpc::SandboxState::DESTROYING;
  r.left = {{"cgroup", "memory:/cordon/x", 16}, {"process", "17", 0}};
  return r;
}

const SandboxRecord* good(kj::Maybe<Records::Found>& found) {
  KJ_IF_MAYBE (f, found) {
    KJ_IF_MAYBE (r, f->record) return r;
    ADD_FAILURE() << f->damage;
  }
  return nullptr;
}

std::string damageOf(const Records& records, const std::string& name) {
  auto found = records.load(name);
  KJ_IF_MAYBE (f, found) {
    EXPECT_TRUE(f->record == nullptr);
    EXPECT_EQ(f->name, name);
    return f->damage;
  }
  return "(none)";
}

TEST(Records, ReadsBackWhatItWrote) {
  TemporaryDirectory dir;
  Records records(dir / "records");
  EXPECT_EQ(records.write(sample()), 0);
  auto found = records.load("sb-abcdefghij");
  auto* r = good(found);
  ASSERT_NE(r, nullptr);
  EXPECT_EQ(r->bootId, currentBootId());
  EXPECT_EQ(r->bootId.size(), 36u);
  EXPECT_EQ(r->ownerUid, 1234u);
  EXPECT_EQ(r->runtime, "runc");
  EXPECT_EQ(r->image, "host-usr");
  EXPECT_EQ(r->tokenHash, std::string(64, 'a'));
  EXPECT_EQ(r->directory, "/run/cordon/ab12/sandboxes/sb-abcdefghij");
  EXPECT_EQ(r->cgroup, "/cordon/ab12/sb-abcdefghij");
  EXPECT_EQ(r->idSlot, 5u);
  EXPECT_EQ(r->idFirst, 0x70050000u);
  EXPECT_EQ(r->idCount, 65536u);
  EXPECT_EQ(r->createdUnixMs, 1'700'000'000'000);
  EXPECT_EQ(r->createdBootMs, 77u);
  EXPECT_EQ(r->limits.memoryBytes, 1u << 27);
  EXPECT_EQ(r->limits.pids, 64u);
  EXPECT_EQ(r->limits.outputBytes, 9u);
  EXPECT_EQ(r->ttlMs, 1000u);
  EXPECT_EQ(r->idleMs, 2000u);
  EXPECT_EQ(r->state, rpc::SandboxState::DESTROYING);
  ASSERT_EQ(r->left.size(), 2u);
  EXPECT_EQ(r->left[0].name, "memory:/cordon/x");
  EXPECT_EQ(r->left[0].error, 16);
}

TEST(Records, ReplacesListsAndRemoves) {
  TemporaryDirectory dir;
  Records records(dir / "records");
  EXPECT_EQ(records.write(sample("sb-b")), 0);
  EXPECT_EQ(records.write(sample("sb-a")), 0);
  auto again = sample("sb-b");
  again.ownerUid = 9;
  EXPECT_EQ(records.write(again), 0);
  auto all = records.list();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].name, "sb-a");
  EXPECT_EQ(all[1].name, "sb-b");
  KJ_IF_MAYBE (r, all[1].record) EXPECT_EQ(r->ownerUid, 9u);
  EXPECT_EQ(records.remove("sb-a"), 0);
  EXPECT_EQ(records.remove("sb-a"), 0);
  EXPECT_TRUE(records.load("sb-a") == nullptr);
  EXPECT_EQ(records.list().size(), 1u);
  struct stat st;
  ASSERT_EQ(stat(records.pathOf("sb-b").c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0600u);
}

TEST(Records, AWriterThatDiedLeavesNothing) {
  TemporaryDirectory dir;
  {
    Records records(dir / "records");
    EXPECT_EQ(records.write(sample("sb-a")), 0);
  }
  std::ofstream(dir / "records/.new-sb-a") << "half";
  std::ofstream(dir / "records/.new-sb-b") << "half";
  Records records(dir / "records");
  EXPECT_NE(access((dir / "records/.new-sb-a").c_str(), F_OK), 0);
  EXPECT_EQ(records.list().size(), 1u);
  // Also one that was planted as a link after the start is not followed.
  std::ofstream(dir / "victim") << "untouched";
  ASSERT_EQ(symlink((dir / "victim").c_str(), (dir / "records/.new-sb-c").c_str()), 0);
  EXPECT_EQ(records.write(sample("sb-c")), 0);
  std::string text;
  std::ifstream(dir / "victim") >> text;
  EXPECT_EQ(text, "untouched");
}

TEST(Records, PlantedFilesAreDamagedAndNotFollowed) {
  TemporaryDirectory dir;
  Records records(dir / "records");
  EXPECT_EQ(records.write(sample("sb-good")), 0);
  std::string good = records.pathOf("sb-good");
  ASSERT_EQ(symlink(good.c_str(), records.pathOf("sb-link").c_str()), 0);
  EXPECT_EQ(damageOf(records, "sb-link"), "a symbolic link");
  ASSERT_EQ(mkfifo(records.pathOf("sb-fifo").c_str(), 0600), 0);
  EXPECT_EQ(damageOf(records, "sb-fifo"), "not a regular file");
  ASSERT_EQ(mkdir(records.pathOf("sb-dir").c_str(), 0700), 0);
  EXPECT_EQ(damageOf(records, "sb-dir"), "not a regular file");
  ASSERT_EQ(link(good.c_str(), records.pathOf("sb-hard").c_str()), 0);
  EXPECT_EQ(damageOf(records, "sb-hard"), "the file has another name, too");
  EXPECT_EQ(damageOf(records, "sb-good"), "the file has another name, too");
  EXPECT_EQ(records.remove("sb-hard"), 0);
  ASSERT_EQ(chmod(good.c_str(), 0644), 0);
  EXPECT_EQ(damageOf(records, "sb-good"), "others can read or write the file");
  ASSERT_EQ(chmod(good.c_str(), 0600), 0);
  if (geteuid() == 0) {
    ASSERT_EQ(chown(good.c_str(), 1000, 1000), 0);
    EXPECT_EQ(damageOf(records, "sb-good"), "the file belongs to somebody else");
    ASSERT_EQ(chown(good.c_str(), 0, 0), 0);
  }
  // The record of one under the name of another.
  ASSERT_EQ(rename(good.c_str(), records.pathOf("sb-other").c_str()), 0);
  EXPECT_EQ(damageOf(records, "sb-other"), "the record of another sandbox");
  // All of them are reported by name, and can be removed by it.
  std::ofstream(dir / "records/README") << "not a record";
  std::vector<std::string> strange;
  auto all = records.list(&strange);
  EXPECT_EQ(strange, std::vector<std::string>{"README"});
  EXPECT_EQ(all.size(), 4u);
  EXPECT_EQ(records.remove("sb-link"), 0);
  EXPECT_EQ(records.remove("sb-fifo"), 0);
  EXPECT_EQ(records.remove("sb-dir"), EISDIR);
}

TEST(Records, DamagedBytesAreNamedAsSuch) {
  TemporaryDirectory dir;
  Records records(dir / "records");
  auto put = [&](const std::string& name, const std::string& bytes) {
    std::ofstream(records.pathOf(name), std::ios::binary) << bytes;
    chmod(records.pathOf(name).c_str(), 0600);
  };
  put("sb-empty", "");
  EXPECT_EQ(damageOf(records, "sb-empty"), "not a record's size");
  put("sb-text", "this is not a capnp message at all, is it?......");
  EXPECT_NE(damageOf(records, "sb-text"), "");
  put("sb-zero", std::string(64, '\0'));
  EXPECT_NE(damageOf(records, "sb-zero"), "");
  put("sb-long", std::string(kMaxRecordBytes + 8, '\0'));
  EXPECT_EQ(damageOf(records, "sb-long"), "not a record's size");
  auto whole = encodeRecord(sample("sb-cut"));
  for (size_t size = 0; size < whole.size(); size += 8) {
    std::string damage;
    EXPECT_TRUE(decodeRecord(whole.slice(0, size), damage) == nullptr) << size;
    EXPECT_NE(damage, "") << size;
  }
}

TEST(Records, FieldsThatEncodeWouldNotWriteAreRefused) {
  auto damage = [](std::function<void(SandboxRecord&)> change) {
    auto record = sample();
    change(record);
    std::string text;
    EXPECT_TRUE(decodeRecord(encodeRecord(record), text) == nullptr);
    return text;
  };
  EXPECT_EQ(damage([](auto& r) { r.name = "../evil"; }), "the name is not one");
  EXPECT_EQ(damage([](auto& r) { r.name = ""; }), "the name is not one");
  EXPECT_EQ(damage([](auto& r) { r.tokenHash = "short"; }), "tokenHash is not a SHA-256");
  EXPECT_EQ(damage([](auto& r) { r.directory = "/run/../etc"; }),
            "directory is not an absolute path");
  EXPECT_EQ(damage([](auto& r) { r.directory = "/"; }), "directory is not an absolute path");
  EXPECT_EQ(damage([](auto& r) { r.directory = "relative"; }), "directory is not an absolute path");
  EXPECT_EQ(damage([](auto& r) { r.directory = std::string("/a\0b", 4); }),
            "directory is not an absolute path");
  EXPECT_EQ(damage([](auto& r) { r.cgroup = "/../x"; }), "cgroup is not a cgroup's path");
  EXPECT_EQ(damage([](auto& r) { r.idCount = 0; }), "half an id range");
  EXPECT_EQ(damage([](auto& r) { r.runtime = std::string(5000, 'x'); }),
            "runtime is not a text of this kind");
  // Nothing at all set but the name: a record of the host runtime.
  SandboxRecord plain;
  plain.name = "sb-plain";
  std::string text;
  EXPECT_FALSE(decodeRecord(encodeRecord(plain), text) == nullptr) << text;
}

TEST(Records, ALongReceiptIsShortenedAndStaysReadable) {
  auto record = sample();
  record.left.assign(10000, {std::string(5000, 'k'), std::string(5000, 'n'), 1});
  std::string damage;
  auto back = decodeRecord(encodeRecord(record), damage);
  KJ_IF_MAYBE (r, back) {
    EXPECT_EQ(r->left.size(), kMaxRecordLeftOvers);
  } else {
    FAIL() << damage;
  }
}

TEST(Records, RefusesADirectoryThatIsNotItsOwn) {
  TemporaryDirectory dir;
  ASSERT_EQ(mkdir((dir / "open").c_str(), 0777), 0);
  ASSERT_EQ(chmod((dir / "open").c_str(), 0777), 0);
  EXPECT_ANY_THROW(Records(dir / "open"));
  ASSERT_EQ(mkdir((dir / "real").c_str(), 0700), 0);
  ASSERT_EQ(symlink((dir / "real").c_str(), (dir / "link").c_str()), 0);
  EXPECT_ANY_THROW(Records(dir / "link"));
  if (geteuid() == 0) {
    ASSERT_EQ(chown((dir / "real").c_str(), 1000, 1000), 0);
    EXPECT_ANY_THROW(Records(dir / "real"));
  }
  EXPECT_ANY_THROW(Records("relative"));
  Records records(dir / "fine");
  EXPECT_ANY_THROW((void)records.write(sample("../x")));
  EXPECT_ANY_THROW((void)records.write(sample(".new-x")));
  EXPECT_ANY_THROW(records.remove("a/b"));
  EXPECT_TRUE(records.load("../fine") == nullptr);
}

}  // namespace
}  // namespace cordon::broker
