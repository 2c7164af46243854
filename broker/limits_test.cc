#include "broker/limits.h"

#include <capnp/message.h>
#include <gtest/gtest.h>

#include <functional>

namespace cordon::broker {
namespace {

constexpr uint64_t kMiB = 1024 * 1024;

Ceilings bigHost() {
  Ceilings c;
  c.memoryBytes = c.diskBytes = c.tmpBytes = c.shmBytes = c.rootBytes = 8192 * kMiB;
  c.pids = 32768;
  c.cpuMillis = 4000;
  c.cpuTimeMs = 4 * 86'400'000ull;
  c.wallMs = 86'400'000;
  c.fileSizeBytes = INT64_MAX;
  c.files = 20000;
  c.outputBytes = 65536 * kMiB;
  return c;
}

using Fill = std::function<void(rpc::Limits::Builder)>;

kj::OneOf<ResolvedLimits, LimitRefusal> resolve(Fill fill, const Ceilings& c = bigHost()) {
  capnp::MallocMessageBuilder message;
  auto limits = message.initRoot<rpc::Limits>();
  fill(limits);
  return resolveLimits(limits.asReader(), c);
}

ResolvedLimits accepted(Fill fill, const Ceilings& c = bigHost()) {
  auto answer = resolve(fill, c);
  EXPECT_TRUE(answer.is<ResolvedLimits>())
      << (answer.is<LimitRefusal>() ? answer.get<LimitRefusal>().detail : "");
  return answer.is<ResolvedLimits>() ? answer.get<ResolvedLimits>() : ResolvedLimits{};
}

LimitRefusal refused(Fill fill, const Ceilings& c = bigHost()) {
  auto answer = resolve(fill, c);
  EXPECT_TRUE(answer.is<LimitRefusal>());
  return answer.is<LimitRefusal>() ? answer.get<LimitRefusal>() : LimitRefusal{};
}

TEST(Limits, DefaultsAreTheDocumentedOnes) {
  auto r = accepted([](auto) {});
  EXPECT_EQ(r.memoryBytes, 512 * kMiB);
  EXPECT_EQ(r.pids, 256u);
  EXPECT_EQ(r.cpuMillis, 1000u);
  EXPECT_EQ(r.cpuTimeMs, 60000u);
  EXPECT_EQ(r.wallMs, 60000u);
  EXPECT_EQ(r.files, 1024u);
  EXPECT_EQ(r.diskBytes, 64 * kMiB);
  EXPECT_EQ(r.tmpBytes, 64 * kMiB);
  EXPECT_EQ(r.shmBytes, 64 * kMiB);
  EXPECT_EQ(r.fileSizeBytes, 64 * kMiB);
  EXPECT_EQ(r.outputBytes, kMiB);
}

TEST(Limits, EveryExplicitValueIsKept) {
  auto r = accepted([](rpc::Limits::Builder l) {
    l.setMemoryBytes(128 * kMiB);
    l.setPids(64);
    l.setCpuMillis(500);
    l.setCpuTimeMs(2000);
    l.setWallMs(5000);
    l.setFileSizeBytes(100 * kMiB);
    l.setFiles(256);
    l.setDiskBytes(64 * kMiB);
    l.setTmpBytes(8 * kMiB);
    l.setShmBytes(4 * kMiB);
    l.setOutputBytes(1000);
  });
  EXPECT_EQ(r.memoryBytes, 128 * kMiB);
  EXPECT_EQ(r.pids, 64u);
  EXPECT_EQ(r.cpuMillis, 500u);
  EXPECT_EQ(r.cpuTimeMs, 2000u);
  EXPECT_EQ(r.wallMs, 5000u);
  EXPECT_EQ(r.fileSizeBytes, 100 * kMiB);
  EXPECT_EQ(r.files, 256u);
  EXPECT_EQ(r.diskBytes, 64 * kMiB);
  EXPECT_EQ(r.tmpBytes, 8 * kMiB);
  EXPECT_EQ(r.shmBytes, 4 * kMiB);
  EXPECT_EQ(r.outputBytes, 1000u);
}

TEST(Limits, TooSmallNamesTheFieldAndItsMinimum) {
  struct Case {
    const char* subject;
    uint64_t minimum;
    Fill fill;
  };
  const Case cases[] = {
      {"memoryBytes", 8 * kMiB, [](auto l) { l.setMemoryBytes(8 * kMiB - 1); }},
      {"pids", 2, [](auto l) { l.setPids(1); }},
      {"cpuMillis", 10, [](auto l) { l.setCpuMillis(9); }},
      {"cpuTimeMs", 10, [](auto l) { l.setCpuTimeMs(9); }},
      {"wallMs", 10, [](auto l) { l.setWallMs(9); }},
      {"files", 8, [](auto l) { l.setFiles(7); }},
      {"diskBytes", 65536, [](auto l) { l.setDiskBytes(65535); }},
      {"tmpBytes", 65536, [](auto l) { l.setTmpBytes(1); }},
      {"rootBytes", 65536, [](auto l) { l.setRootBytes(1); }},
      {"shmBytes", 65536, [](auto l) { l.setShmBytes(1); }},
  };
  for (auto& c : cases) {
    auto refusal = refused(c.fill);
    EXPECT_EQ(refusal.reason, rpc::Reason::LIMIT_TOO_LOW) << c.subject;
    EXPECT_EQ(refusal.subject, c.subject);
    EXPECT_EQ(refusal.limit, c.minimum) << c.subject;
  }
}

TEST(Limits, TooLargeNamesTheFieldAndTheCeiling) {
  struct Case {
    const char* subject;
    uint64_t ceiling;
    Fill fill;
  };
  const Case cases[] = {
      {"memoryBytes", 8192 * kMiB, [](auto l) { l.setMemoryBytes(UINT64_MAX); }},
      {"pids", 32768, [](auto l) { l.setPids(32769); }},
      {"cpuMillis", 4000, [](auto l) { l.setCpuMillis(4001); }},
      {"cpuTimeMs", 4 * 86'400'000ull, [](auto l) { l.setCpuTimeMs(UINT64_MAX); }},
      {"wallMs", 86'400'000, [](auto l) { l.setWallMs(86'400'001); }},
      {"fileSizeBytes", INT64_MAX, [](auto l) { l.setFileSizeBytes(UINT64_MAX); }},
      {"files", 20000, [](auto l) { l.setFiles(20001); }},
      {"diskBytes", 8192 * kMiB, [](auto l) { l.setDiskBytes(UINT64_MAX); }},
      {"tmpBytes", 8192 * kMiB, [](auto l) { l.setTmpBytes(UINT64_MAX); }},
      {"rootBytes", 8192 * kMiB, [](auto l) { l.setRootBytes(UINT64_MAX); }},
      {"shmBytes", 8192 * kMiB, [](auto l) { l.setShmBytes(UINT64_MAX); }},
      {"outputBytes", 65536 * kMiB, [](auto l) { l.setOutputBytes(UINT64_MAX); }},
  };
  for (auto& c : cases) {
    auto refusal = refused(c.fill);
    EXPECT_EQ(refusal.reason, rpc::Reason::LIMIT_TOO_HIGH) << c.subject;
    EXPECT_EQ(refusal.subject, c.subject);
    EXPECT_EQ(refusal.limit, c.ceiling) << c.subject;
  }
}

TEST(Limits, ExplicitScratchMustFit) {
  auto refusal = refused([](auto l) {
    l.setMemoryBytes(128 * kMiB);
    l.setDiskBytes(256 * kMiB);
  });
  EXPECT_EQ(refusal.reason, rpc::Reason::SCRATCH_EXCEEDS_MEMORY);
  EXPECT_EQ(refusal.subject, "diskBytes");
  EXPECT_EQ(refusal.limit, 124 * kMiB - 2 * 65536);
  refusal = refused([](auto l) {
    l.setMemoryBytes(100 * kMiB);
    l.setDiskBytes(40 * kMiB);
    l.setTmpBytes(41 * kMiB);
    l.setShmBytes(20 * kMiB);
  });
  EXPECT_EQ(refusal.reason, rpc::Reason::SCRATCH_EXCEEDS_MEMORY);
  EXPECT_EQ(refusal.subject, "tmpBytes");
  EXPECT_EQ(refusal.limit, 96 * kMiB);
}

TEST(Limits, AWritableRootIsAskedForAndCounts) {
  EXPECT_EQ(accepted([](auto) {}).rootBytes, 0u);
  auto r = accepted([](auto l) {
    l.setMemoryBytes(64 * kMiB);
    l.setRootBytes(40 * kMiB + 1);
  });
  EXPECT_EQ(r.rootBytes, 40 * kMiB);
  EXPECT_LE(r.diskBytes + r.tmpBytes + r.shmBytes + r.rootBytes, 60 * kMiB);
  auto refusal = refused([](auto l) {
    l.setMemoryBytes(64 * kMiB);
    l.setRootBytes(61 * kMiB);
  });
  EXPECT_EQ(refusal.reason, rpc::Reason::SCRATCH_EXCEEDS_MEMORY);
  EXPECT_EQ(refusal.subject, "rootBytes");
}

TEST(Limits, DefaultsShrinkToFitAtEverySize) {
  // Every memory size from the smallest, with every pattern of explicit sizes.
  for (uint64_t memory = 8 * kMiB; memory <= 700 * kMiB; memory += 3 * kMiB + 4096) {
    for (int pattern = 0; pattern < 8; ++pattern) {
      uint64_t each = (memory - 4 * kMiB - 2 * 65536) / 3;
      auto r = accepted([&](auto l) {
        l.setMemoryBytes(memory);
        if (pattern & 1) l.setDiskBytes(each);
        if (pattern & 2) l.setTmpBytes(each);
        if (pattern & 4) l.setShmBytes(each);
      });
      EXPECT_LE(r.diskBytes + r.tmpBytes + r.shmBytes, r.memoryBytes - 4 * kMiB)
          << memory << " " << pattern;
      for (uint64_t size : {r.diskBytes, r.tmpBytes, r.shmBytes}) {
        EXPECT_GE(size, 65536u) << memory << " " << pattern;
        EXPECT_EQ(size % 4096, 0u);
      }
    }
  }
  // All that there is, asked for explicitly.
  auto r = accepted([](auto l) {
    l.setMemoryBytes(8 * kMiB);
    l.setDiskBytes(4 * kMiB - 2 * 65536);
  });
  EXPECT_EQ(r.tmpBytes, 65536u);
  EXPECT_EQ(r.shmBytes, 65536u);
}

TEST(Limits, DefaultsStayBelowLoweredCeilings) {
  auto c = bigHost();
  c.memoryBytes = 64 * kMiB;
  c.pids = 100;
  c.wallMs = 1000;
  c.files = 64;
  c.outputBytes = 10;
  auto r = accepted([](auto) {}, c);
  EXPECT_EQ(r.memoryBytes, 64 * kMiB);
  EXPECT_EQ(r.pids, 100u);
  EXPECT_EQ(r.wallMs, 1000u);
  EXPECT_EQ(r.files, 64u);
  EXPECT_EQ(r.outputBytes, 10u);
}

TEST(Limits, MemoryIsWholePages) {
  auto r = accepted([](auto l) { l.setMemoryBytes(16 * kMiB + 1); });
  EXPECT_EQ(r.memoryBytes, 16 * kMiB);
}

TEST(Limits, ThisHostHasCeilings) {
  auto c = Ceilings::ofThisHost();
  EXPECT_GT(c.memoryBytes, 64 * kMiB);
  EXPECT_GE(c.cpuMillis, 1000u);
  EXPECT_GE(c.files, 64u);
  EXPECT_GE(c.pids, 1000u);
  EXPECT_LE(c.pids, 32768u);
  accepted([](auto) {}, c);
}

}  // namespace
}  // namespace cordon::broker
