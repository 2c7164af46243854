#include "broker/ids.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <kj/debug.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

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

  // As another broker that is at these slots: until it is closed.
  kj::AutoCloseFd lockSlots(off_t first, off_t count) {
    int fd = open((dir / "ids/.lock").c_str(), O_RDWR | O_CLOEXEC);
    KJ_REQUIRE(fd >= 0);
    struct flock lock {};
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    lock.l_start = first;
    lock.l_len = count;
    KJ_SYSCALL(fcntl(fd, F_OFD_SETLK, &lock));
    return kj::AutoCloseFd(fd);
  }

  // errno of it; EBUSY = another broker is at it.
  static int release(IdRegistry& ids, uint32_t slot, const std::string& path) {
    return ids.release(slot, path, [&] { return unlink(path.c_str()) == 0 ? 0 : errno; })
        .orDefault(EBUSY);
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
  EXPECT_EQ(release(ids, first, record("a")), 0);
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
      EXPECT_EQ(ids.release(slot, record("a"), [] { return 0; }).orDefault(EBUSY), 0);
      struct stat st;
      EXPECT_EQ(lstat((dir / ("ids/" + std::to_string(slot))).c_str(), &st), 0);
    } else {
      EXPECT_EQ(release(ids, other, name), 0);
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

TEST_F(IdsTest, ARangeThatAnotherIsAtIsPassedBy) {
  IdRegistry ids(dir / "ids", small);
  auto other = lockSlots(2, 1);
  std::set<uint32_t> slots{claim(ids, record("a")), claim(ids, record("b"))};
  EXPECT_EQ(slots, (std::set<uint32_t>{1, 3}));
  auto never = [](auto&) { ADD_FAILURE() << "without the lock"; };
  EXPECT_TRUE(ids.claim(record("c"), never).is<IdsBusy>());
  other = nullptr;
  EXPECT_EQ(claim(ids, record("c")), 2u);
}

TEST_F(IdsTest, WithAllLockedNothingIsTouched) {
  IdRegistry ids(dir / "ids", IdSpan{0x70000000, 1024});
  uint32_t a = claim(ids, record("a")), b = claim(ids, record("b"));
  unlink(record("b").c_str());  // b's is stale
  auto other = lockSlots(0, 0);
  auto never = [](auto&) { ADD_FAILURE() << "without the lock"; };
  EXPECT_TRUE(ids.claim(record("c"), never).is<IdsBusy>());
  EXPECT_EQ(release(ids, a, record("a")), EBUSY);
  EXPECT_EQ(access(record("a").c_str(), F_OK), 0);
  EXPECT_EQ(ids.unclaimStale(), 0u);
  other = nullptr;
  EXPECT_EQ(release(ids, a, record("a")), 0);
  EXPECT_EQ(ids.unclaimStale(), 1u);
  EXPECT_NE(b, 0u);
}

// In the middle of a claim, with its lock: only that range is out of reach, and
// its end gives it back.
TEST_F(IdsTest, AStoppedBrokerHoldsUpNobody) {
  IdRegistry ids(dir / "ids", small);
  uint32_t mine = claim(ids, record("a"));
  pid_t stopped = fork();
  ASSERT_GE(stopped, 0);
  if (stopped == 0) {
    IdRegistry its(dir / "ids", small);
    its.claim(record("its"), [](auto&) { raise(SIGSTOP); });
    _exit(0);
  }
  int status;
  ASSERT_EQ(waitpid(stopped, &status, WUNTRACED), stopped);
  EXPECT_TRUE(WIFSTOPPED(status));
  EXPECT_EQ(release(ids, mine, record("a")), 0);
  uint32_t b = claim(ids, record("b")), c = claim(ids, record("c"));
  EXPECT_NE(b, c);
  EXPECT_TRUE(ids.claim(record("d"), [](auto&) {}).is<IdsBusy>());
  EXPECT_EQ(kill(stopped, SIGKILL), 0);
  ASSERT_EQ(waitpid(stopped, &status, 0), stopped);
  EXPECT_EQ(b + c + claim(ids, record("d")), 1u + 2u + 3u);
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
