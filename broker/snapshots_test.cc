#include "broker/snapshots.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <fstream>

#include "broker/testing_directory.h"

namespace cordon::broker {
namespace {

constexpr uint32_t kUid = 1000;
const std::string kHash(64, 'a');

class SnapshotsTest : public ::testing::Test {
 protected:
  SnapshotsTest() : path_(directory_.path() + "/snapshots") {}

  SnapshotRecord record(const std::string& name, uint64_t bytes = 7) const {
    SnapshotRecord r;
    r.name = name;
    r.ownerUid = kUid;
    r.tokenHash = kHash;
    r.sha256 = std::string(64, 'b');
    r.machine = thisMachine();
    r.image = "host-usr";
    r.archiveBytes = bytes;
    r.limits.memoryBytes = 5;
    return r;
  }

  void make(SnapshotStore& store, const std::string& name) const {
    auto begun = store.begin(name);
    ASSERT_TRUE(begun.is<kj::Own<SnapshotStore::Draft>>()) << begun.get<int>();
    auto& draft = begun.get<kj::Own<SnapshotStore::Draft>>();
    ASSERT_EQ(7, write(draft->archive(), "content", 7));
    ASSERT_EQ(0, draft->commit(encodeSnapshot(record(name))));
    store.add(record(name));
  }

  std::string damageOf(SnapshotStore& store, const std::string& name) const {
    auto answer = store.open(record(name));
    return answer.is<std::string>() ? answer.get<std::string>() : "";
  }

  std::string data(const std::string& name) const { return path_ + "/" + name + "/data"; }
  std::string meta(const std::string& name) const { return path_ + "/" + name + "/meta"; }
  bool exists(const std::string& path) const { return access(path.c_str(), F_OK) == 0; }

  testing::TemporaryDirectory directory_;
  std::string path_;
};

constexpr char kName[] = "sn-abcdefghij";

TEST_F(SnapshotsTest, IsThereAfterARestartAndForItsOwnerAlone) {
  {
    SnapshotStore store(path_, {});
    make(store, kName);
  }
  std::vector<std::string> damaged;
  SnapshotStore store(path_, {}, &damaged);
  EXPECT_TRUE(damaged.empty());
  EXPECT_TRUE(store.find(kUid, kName, kHash) != nullptr);
  EXPECT_TRUE(store.find(kUid + 1, kName, kHash) == nullptr);
  EXPECT_TRUE(store.find(kUid, kName, std::string(64, 'c')) == nullptr);
  EXPECT_TRUE(store.find(kUid, kName, "") == nullptr);
  EXPECT_EQ(1u, store.of(kUid).size());
  EXPECT_TRUE(store.of(kUid + 1).empty());
  EXPECT_EQ("", damageOf(store, kName));
  struct stat st;
  ASSERT_EQ(0, stat(path_.c_str(), &st));
  EXPECT_EQ(0700u, st.st_mode & 0777u);
}

TEST_F(SnapshotsTest, HalfMadeIsGoneAtOnceOrAtTheNextStart) {
  {
    SnapshotStore store(path_, {});
    {
      auto begun = store.begin(kName);
      EXPECT_TRUE(begun.is<kj::Own<SnapshotStore::Draft>>());
      EXPECT_TRUE(exists(path_ + "/.new-" + kName + "/data"));
      // Another of that name takes nothing from it.
      auto again = store.begin(kName);
      ASSERT_TRUE(again.is<int>());
      EXPECT_EQ(EEXIST, again.get<int>());
      EXPECT_TRUE(exists(path_ + "/.new-" + kName + "/data"));
    }
    EXPECT_FALSE(exists(path_ + "/.new-" + kName));
    make(store, kName);
    store.forget(kName);
    EXPECT_TRUE(exists(path_ + "/.gone-" + kName));
  }
  mkdir((path_ + "/.new-sn-aaaaaaaaaa").c_str(), 0700);
  std::ofstream(path_ + "/.new-sn-aaaaaaaaaa/data") << "half";
  SnapshotStore store(path_, {});
  EXPECT_FALSE(exists(path_ + "/.new-sn-aaaaaaaaaa"));
  EXPECT_FALSE(exists(path_ + "/.gone-" + kName));
  EXPECT_EQ(0u, store.countOf(nullptr));
}

TEST_F(SnapshotsTest, DamageIsNamed) {
  SnapshotStore store(path_, {});
  make(store, kName);
  ASSERT_EQ(0, truncate(data(kName).c_str(), 6));
  EXPECT_NE(std::string::npos, damageOf(store, kName).find("length"));
  ASSERT_EQ(0, unlink(data(kName).c_str()));
  EXPECT_NE("", damageOf(store, kName));
  ASSERT_EQ(0, symlink("/etc/passwd", data(kName).c_str()));
  EXPECT_NE("", damageOf(store, kName));
  unlink(data(kName).c_str());
  ASSERT_EQ(0, mkfifo(data(kName).c_str(), 0600));
  EXPECT_NE(std::string::npos, damageOf(store, kName).find("regular"));
  unlink(data(kName).c_str());
  std::ofstream(data(kName)) << "content";
  chmod(data(kName).c_str(), 0644);
  EXPECT_NE(std::string::npos, damageOf(store, kName).find("others"));
  chmod(data(kName).c_str(), 0600);
  EXPECT_EQ("", damageOf(store, kName));
  // The record.
  auto other = record(kName);
  other.sha256[0] = 'c';
  auto bytes = encodeSnapshot(other);
  std::ofstream(meta(kName), std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.begin()),
             static_cast<std::streamsize>(bytes.size()));
  EXPECT_NE(std::string::npos, damageOf(store, kName).find("not what was written"));
  std::ofstream(meta(kName)) << "xx";
  EXPECT_NE("", damageOf(store, kName));
  std::vector<std::string> damaged;
  SnapshotStore again(path_, {}, &damaged);
  EXPECT_EQ(1u, damaged.size());
  EXPECT_EQ(0u, again.countOf(nullptr));
}

TEST_F(SnapshotsTest, CountsAndRoom) {
  SnapshotStore store(path_, {64, 16, 20, 10});
  EXPECT_EQ(10u, store.roomFor(kUid));
  make(store, kName);
  EXPECT_EQ(3u, store.roomFor(kUid));
  EXPECT_EQ(10u, store.roomFor(kUid + 1));
  auto other = record("sn-bbbbbbbbbb", 9);
  other.ownerUid = kUid + 1;
  store.add(other);
  EXPECT_EQ(1u, store.roomFor(kUid + 1));
  EXPECT_EQ(3u, store.roomFor(kUid));
  EXPECT_EQ(4u, store.roomFor(kUid + 2));
  EXPECT_EQ(1u, store.countOf(kUid));
  EXPECT_EQ(2u, store.countOf(nullptr));
}

TEST_F(SnapshotsTest, WhatIsBeingMadeCounts) {
  SnapshotStore store(path_, {64, 16, 20, 10});
  make(store, kName);
  {
    SnapshotStore::Place own(store, kUid), others(store, kUid + 1);
    EXPECT_EQ(2u, store.countOf(kUid));
    EXPECT_EQ(3u, store.countOf(nullptr));
    EXPECT_EQ(3u, store.roomFor(kUid));
    own.bytes = 2;
    others.bytes = 10;
    EXPECT_EQ(1u, store.roomFor(kUid));
    EXPECT_EQ(0u, store.roomFor(kUid + 1));
    EXPECT_EQ(1u, store.roomFor(kUid + 2));
  }
  EXPECT_EQ(1u, store.countOf(nullptr));
  EXPECT_EQ(3u, store.roomFor(kUid));
}

TEST_F(SnapshotsTest, RefusesADirectoryThatOthersRead) {
  mkdir(path_.c_str(), 0755);
  EXPECT_ANY_THROW(SnapshotStore(path_, {}));
}

}  // namespace
}  // namespace cordon::broker
