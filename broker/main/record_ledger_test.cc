// The ledger while other brokers are at the id registry, on a clock of its own.
#include "broker/main/record_ledger.h"

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <kj/debug.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "broker/testing_directory.h"

namespace cordon::broker {
namespace {

namespace fs = std::filesystem;

class RecordLedgerTest : public ::testing::Test {
 public:
  ~RecordLedgerTest() noexcept override {}

 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "id ranges are root's";
    options.state = dir / "state";
    options.idRegistry = dir / "ids";
    state = kj::heap<StateDirectory>(options.state);
    ledger = openLedger(options, *state, timer, clock);
    record.name = "sb-aaaaaaaaaa";
    record.runtime = "jail";
  }

  // As other brokers that are at every range.
  void lockAll() {
    int fd = open((options.idRegistry + "/.lock").c_str(), O_RDWR | O_CLOEXEC);
    KJ_REQUIRE(fd >= 0);
    others = kj::AutoCloseFd(fd);
    struct flock lock {};
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    KJ_SYSCALL(fcntl(fd, F_OFD_SETLK, &lock));
  }

  // Lets time pass as long as the promise is not ready; how much did.
  template <typename T>
  kj::Duration pass(kj::Promise<T>& promise, kj::Duration most) {
    constexpr auto kTick = 1 * kj::MILLISECONDS;
    kj::Duration passed = 0 * kj::SECONDS;
    while (passed < most && !promise.poll(waitScope)) {
      passed += kTick;
      timer.advanceTo(timer.now() + kTick);
    }
    return passed;
  }

  bool recorded() const { return fs::exists(options.state + "/records/" + record.name); }
  size_t claims() const {
    size_t found = 0;
    for (auto& entry : fs::directory_iterator(options.idRegistry)) found += entry.is_symlink();
    return found;
  }

  testing::TemporaryDirectory dir;
  kj::EventLoop loop;
  kj::WaitScope waitScope{loop};
  kj::TimerImpl timer{kj::origin<kj::TimePoint>()};
  TurnClock clock;
  Options options;
  kj::Own<StateDirectory> state;
  kj::Own<Ledger> ledger;
  kj::AutoCloseFd others;
  SandboxRecord record;
};

TEST_F(RecordLedgerTest, OpensAndClosesAtOnceWhenNobodyIsThere) {
  EXPECT_TRUE(ledger->open(record, true).wait(waitScope) == nullptr);
  EXPECT_EQ(record.idCount, kIdsPerRange);
  EXPECT_TRUE(recorded());
  EXPECT_EQ(claims(), 1u);
  EXPECT_TRUE(ledger->close(record).wait(waitScope).empty());
  EXPECT_FALSE(recorded());
  EXPECT_EQ(claims(), 0u);
}

TEST_F(RecordLedgerTest, OpeningWaitsForOthersWithoutAnEffect) {
  lockAll();
  auto opened = ledger->open(record, true);
  EXPECT_EQ(pass(opened, 1 * kj::SECONDS), 1 * kj::SECONDS);
  EXPECT_FALSE(recorded());
  EXPECT_EQ(claims(), 0u);
  others = nullptr;
  EXPECT_LE(pass(opened, 1 * kj::SECONDS), 20 * kj::MILLISECONDS);
  EXPECT_TRUE(opened.wait(waitScope) == nullptr);
  EXPECT_TRUE(recorded());
  EXPECT_EQ(claims(), 1u);
}

TEST_F(RecordLedgerTest, ClosingWaitsForOthersAndIsComplete) {
  ASSERT_TRUE(ledger->open(record, true).wait(waitScope) == nullptr);
  lockAll();
  auto closed = ledger->close(record);
  EXPECT_EQ(pass(closed, 1 * kj::SECONDS), 1 * kj::SECONDS);
  EXPECT_TRUE(recorded());
  EXPECT_EQ(claims(), 1u);
  others = nullptr;
  EXPECT_LE(pass(closed, 1 * kj::SECONDS), 20 * kj::MILLISECONDS);
  EXPECT_TRUE(closed.wait(waitScope).empty());
  EXPECT_FALSE(recorded());
  EXPECT_EQ(claims(), 0u);
}

TEST_F(RecordLedgerTest, OpeningEndsWithAClearErrorWhenNobodyLetsGo) {
  lockAll();
  auto opened = ledger->open(record, true);
  auto waited = pass(opened, 60 * kj::SECONDS);
  EXPECT_GE(waited, kIdsWait);
  EXPECT_LE(waited, kIdsWait + 20 * kj::MILLISECONDS);
  auto refused = opened.wait(waitScope);
  KJ_IF_MAYBE (why, refused) {
    EXPECT_EQ(why->reason, rpc::Reason::HOST_LIMIT);
    EXPECT_NE(why->detail.find("id registry is locked"), std::string::npos) << why->detail;
  } else {
    FAIL() << "claimed without the lock";
  }
  EXPECT_EQ(record.idCount, 0u);
  EXPECT_FALSE(recorded());
}

TEST_F(RecordLedgerTest, ClosingKeepsTheRecordWhenNobodyLetsGo) {
  ASSERT_TRUE(ledger->open(record, true).wait(waitScope) == nullptr);
  lockAll();
  auto closed = ledger->close(record);
  auto waited = pass(closed, 60 * kj::SECONDS);
  EXPECT_GE(waited, kIdsWait);
  EXPECT_LE(waited, kIdsWait + 20 * kj::MILLISECONDS);
  auto left = closed.wait(waitScope);
  ASSERT_EQ(left.size(), 1u);
  EXPECT_EQ(left[0].kind, "id-range");
  EXPECT_EQ(left[0].name, std::to_string(record.idFirst));
  EXPECT_EQ(left[0].error, ETIMEDOUT);
  EXPECT_TRUE(recorded());
  // The next attempt, when they did.
  others = nullptr;
  EXPECT_TRUE(ledger->close(record).wait(waitScope).empty());
  EXPECT_FALSE(recorded());
}

// Each waits on its own; one that was there first has no lock that the others
// would be behind.
TEST_F(RecordLedgerTest, ManyWaitAndAllAreServed) {
  constexpr size_t kMany = 50;
  lockAll();
  std::vector<SandboxRecord> records(kMany);
  kj::Vector<kj::Promise<bool>> all;
  for (size_t i = 0; i < kMany; ++i) {
    records[i] = record;
    records[i].name = "sb-aaaaaaaa" + std::string{char('a' + i / 26), char('a' + i % 26)};
    all.add(ledger->open(records[i], true).then([](auto&& refused) { return refused == nullptr; }));
  }
  auto opened = kj::joinPromises(all.releaseAsArray());
  EXPECT_EQ(pass(opened, 1 * kj::SECONDS), 1 * kj::SECONDS);
  others = nullptr;
  EXPECT_LE(pass(opened, 1 * kj::SECONDS), 20 * kj::MILLISECONDS);
  for (bool served : opened.wait(waitScope)) EXPECT_TRUE(served);
  EXPECT_EQ(claims(), kMany);
}

}  // namespace
}  // namespace cordon::broker
