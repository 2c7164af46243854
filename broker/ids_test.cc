#include "broker/ids.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <kj/debug.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <set>

#include "broker/testing_directory.h"

namespace cordon::broker {
namespace {

using testing::TemporaryDirectory;

class IdsTest : public ::testing::Test {
 protected:
  std::string record(const std::string& name) { return dir / name; }

  static void touch(const std::string& path) { std::ofstream(path) << "record"; }

  uint32_t claim(IdRegistry& ids, const std::string& path) {
    uint32_t seen = 0;
    auto answer = ids.claim(path, [&](const ClaimedRange& range) {
      seen = range.slot;
      touch(path);
    });
    if (!answer.is<ClaimedRange>()) {
      ADD_FAILURE() << answer.get<IdRefusal>().detail;
      return 0;
    }
    auto range = answer.get<ClaimedRange>();
    EXPECT_EQ(range.slot, seen);
    EXPECT_EQ(range.first, ids.span().first + range.slot * 65536);
    EXPECT_EQ(range.count, 65536u);
    return range.slot;
  }

  TemporaryDirectory dir;
  IdSpan small{0x70000000, 4};  // three for sandboxes
};

TEST_F(IdsTest, ClaimsAreDistinctUntilExhaustedAlsoAcrossBrokers) {
  IdRegistry one(dir / "ids", small), two(dir / "ids", small);
  std::set<uint32_t> slots{claim(one, record("a")), claim(two, record("b")),
                           claim(one, record("c"))};
  EXPECT_EQ(slots, (std::set<uint32_t>{1, 2, 3}));
  bool called = false;
  auto full = two.claim(record("d"), [&](auto&) { called = true; });
  ASSERT_TRUE(full.is<IdRefusal>());
  EXPECT_EQ(full.get<IdRefusal>().reason, rpc::Reason::ID_RANGES_EXHAUSTED);
  EXPECT_FALSE(called);
}

TEST_F(IdsTest, AReleasedRangeComesBackLast) {
  IdRegistry ids(dir / "ids", small);
  uint32_t first = claim(ids, record("a"));
  EXPECT_EQ(ids.release(first, record("a"), [&] { return unlink(record("a").c_str()); }), 0);
  uint32_t second = claim(ids, record("b"));
  uint32_t third = claim(ids, record("c"));
  EXPECT_NE(second, first);
  EXPECT_NE(third, first);
  EXPECT_EQ(claim(ids, record("d")), first);
}

TEST_F(IdsTest, AClaimWhoseRecordIsGoneIsStale) {
  IdRegistry ids(dir / "ids", small);
  claim(ids, record("a"));
  claim(ids, record("b"));
  claim(ids, record("c"));
  unlink(record("b").c_str());
  claim(ids, record("d"));  // takes b's
  EXPECT_TRUE(ids.claim(record("e"), [](auto&) {}).is<IdRefusal>());
  unlink(record("a").c_str());
  EXPECT_EQ(ids.unclaimStale(), 1u);
  EXPECT_EQ(ids.unclaimStale(), 0u);
}

TEST_F(IdsTest, ReleaseSparesARangeThatAnotherHasByNow) {
  IdRegistry ids(dir / "ids", small);
  uint32_t slot = claim(ids, record("a"));
  unlink(record("a").c_str());
  EXPECT_EQ(ids.unclaimStale(), 1u);
  uint32_t other;
  do {  // until somebody else has that very range
    std::string name = record("other" + std::to_string(rand()));
    other = claim(ids, name);
    if (other == slot) {
      EXPECT_EQ(ids.release(slot, record("a"), [] { return 0; }), 0);
      struct stat st;
      EXPECT_EQ(lstat((dir / ("ids/" + std::to_string(slot))).c_str(), &st), 0);
    } else {
      ids.release(other, name, [&] { return unlink(name.c_str()); });
    }
  } while (other != slot);
}

TEST_F(IdsTest, AFailedRecordUndoesTheClaim) {
  IdRegistry ids(dir / "ids", small);
  for (int i = 0; i < 5; ++i) {
    EXPECT_ANY_THROW(ids.claim(record("x"), [](auto&) { KJ_FAIL_REQUIRE("disk full"); }));
    auto none = ids.claim(record("x"), [](auto&) {});  // wrote none
    ASSERT_TRUE(none.is<IdRefusal>());
    EXPECT_EQ(none.get<IdRefusal>().reason, rpc::Reason::STATE_FULL);
  }
  std::set<uint32_t> slots{claim(ids, record("a")), claim(ids, record("b")),
                           claim(ids, record("c"))};
  EXPECT_EQ(slots.size(), 3u);
}

TEST_F(IdsTest, ABusyLockIsRefusedWithinMilliseconds) {
  IdRegistry ids(dir / "ids", small);
  claim(ids, record("a"));
  int fd = open((dir / "ids/.lock").c_str(), O_RDWR);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(flock(fd, LOCK_EX), 0);
  auto before = std::chrono::steady_clock::now();
  auto answer = ids.claim(record("b"), [](auto&) {});
  auto took = std::chrono::steady_clock::now() - before;
  ASSERT_TRUE(answer.is<IdRefusal>());
  EXPECT_EQ(answer.get<IdRefusal>().reason, rpc::Reason::HOST_LIMIT);
  // 5 ms by itself; the rest is for a machine with other work.
  EXPECT_LT(took, std::chrono::milliseconds(500));
  EXPECT_EQ(ids.release(1, record("a"),
                        [] {
                          ADD_FAILURE() << "without the lock";
                          return 0;
                        }),
            ETIMEDOUT);
  EXPECT_EQ(ids.unclaimStale(), 0u);
  close(fd);
  claim(ids, record("b"));
}

TEST_F(IdsTest, ConcurrentProcessesNeverShareARange) {
  IdSpan span{0x70000000, 64};
  constexpr int kProcesses = 4, kEach = 12;
  std::vector<pid_t> pids;
  for (int p = 0; p < kProcesses; ++p) {
    pid_t pid = fork();
    if (pid == 0) {
      IdRegistry ids(dir / "ids", span);
      for (int i = 0; i < kEach;) {
        std::string path = record("p" + std::to_string(p) + "-" + std::to_string(i));
        auto answer = ids.claim(path, [&](auto& range) { std::ofstream(path) << range.slot; });
        if (answer.is<ClaimedRange>()) ++i;  // else the lock was busy
      }
      _exit(0);
    }
    pids.push_back(pid);
  }
  for (pid_t pid : pids) {
    int status;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_EQ(status, 0);
  }
  std::set<int> slots;
  for (int p = 0; p < kProcesses; ++p) {
    for (int i = 0; i < kEach; ++i) {
      int slot = 0;
      std::ifstream(record("p" + std::to_string(p) + "-" + std::to_string(i))) >> slot;
      slots.insert(slot);
    }
  }
  EXPECT_EQ(slots.size(), static_cast<size_t>(kProcesses * kEach));
}

TEST_F(IdsTest, PlantedEntriesAreNeverFree) {
  IdRegistry ids(dir / "ids", small);
  ASSERT_EQ(mkdir((dir / "ids/1").c_str(), 0755), 0);
  std::ofstream(dir / "ids/2") << "x";
  EXPECT_EQ(claim(ids, record("a")), 3u);
  EXPECT_TRUE(ids.claim(record("b"), [](auto&) {}).is<IdRefusal>());
}

TEST_F(IdsTest, RefusesARegistryThatIsNotItsOwn) {
  ASSERT_EQ(mkdir((dir / "open").c_str(), 0777), 0);
  ASSERT_EQ(chmod((dir / "open").c_str(), 0777), 0);
  EXPECT_ANY_THROW(IdRegistry(dir / "open", small));
  ASSERT_EQ(symlink("/tmp", (dir / "link").c_str()), 0);
  EXPECT_ANY_THROW(IdRegistry(dir / "link", small));
  EXPECT_ANY_THROW(IdRegistry(dir / "ids", IdSpan{0x70000000, 1}));
}

TEST(IdSpan, Parse) {
  KJ_IF_MAYBE (span, parseIdSpan("1879048192:1024")) {
    EXPECT_EQ(span->first, 1879048192u);
    EXPECT_EQ(span->ranges, 1024u);
  } else {
    FAIL();
  }
  for (const char* bad : {"", ":", "1", "1879048192", "1879048192:", ":5", "1879048192:1",
                          "1879048193:4", "0:4", "-65536:4", "1879048192:99999", "2147418112:2",
                          "4294901760:2", "1879048192:4x", " 1879048192:4"}) {
    EXPECT_TRUE(parseIdSpan(bad) == nullptr) << bad;
  }
}

TEST(IdConflicts, NamesWhoseTheyAre) {
  IdSpan span;
  EXPECT_EQ(idConflicts(span, {}, {}), std::vector<std::string>{});
  EXPECT_EQ(idConflicts(span, {}, {0x70000001, 0, 1000}), std::vector<std::string>{});
  EXPECT_EQ(idConflicts(span, {}, {0x70010000}).size(), 1u);
  auto one = [&](IdSources sources) {
    auto all = idConflicts(span, sources, {});
    return all.size() == 1 ? all[0] : std::to_string(all.size()) + " conflicts";
  };
  EXPECT_EQ(one({"alice:100000:65536\nbob:1879113728:65536\n", "", "", ""}),
            "/etc/subuid gives 1879113728-1879179263 to bob");
  // A range that begins before the span and reaches into it.
  EXPECT_EQ(one({"", "# c\ncarol:1879048000:200\n", "", ""}),
            "/etc/subgid gives 1879048000-1879048199 to carol");
  EXPECT_EQ(one({"x:1879048191:1\nbroken\ny:a:b\nz:1879048192:0\n", "", "", ""}), "0 conflicts");
  EXPECT_EQ(one({"", "", "svc:x:1879113730:0::/:\nok:x:1879048193:0::/:\n", ""}),
            "/etc/passwd has svc with id 1879113730");
  EXPECT_EQ(one({"", "", "", "grp:x:1879113730:\n"}), "/etc/group has grp with id 1879113730");
  EXPECT_EQ(idConflicts({524288, 8}, {}, {}).size(), 1u);
  EXPECT_EQ(idConflicts({65536, 2}, {}, {}).size(), 0u);
  EXPECT_EQ(idConflicts({65536, 8}, {}, {}).size(), 1u);
  EXPECT_EQ(idConflicts({0x7FFE0000, 2}, {}, {}).size(), 1u);
}

TEST(IdConflicts, TheDefaultSpanIsFreeHere) {
  auto conflicts = idConflicts({}, IdSources::ofThisHost(), {});
  EXPECT_TRUE(conflicts.empty()) << conflicts[0];
}

}  // namespace
}  // namespace cordon::broker
