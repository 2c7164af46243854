#include "broker/limits.h"

#include <errno.h>
#include <kj/debug.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <vector>

namespace cordon::broker {

namespace {

constexpr uint64_t kKiB = 1024, kMiB = 1024 * kKiB, kGiB = 1024 * kMiB;
constexpr uint64_t kPage = 4096;
constexpr uint64_t kDayMs = 24ull * 3600 * 1000;

constexpr uint64_t kMinMemory = 8 * kMiB;
// A tmpfs of size 0 would be one without a limit.
constexpr uint64_t kMinScratch = 64 * kKiB;
// What full scratch directories must leave of the memory for the program.
constexpr uint64_t kScratchReserve = 4 * kMiB;

uint64_t hardLimit(__rlimit_resource resource, uint64_t unlimited) {
  rlimit limit{};
  KJ_SYSCALL(getrlimit(resource, &limit));
  return limit.rlim_max == RLIM_INFINITY ? unlimited
                                         : std::min<uint64_t>(limit.rlim_max, unlimited);
}

uint32_t pidMax() {
  std::ifstream file("/proc/sys/kernel/pid_max");
  uint64_t value = 0;
  // Unreadable: the smallest that any kernel has by default.
  if (!(file >> value) || value == 0) value = 32768;
  return static_cast<uint32_t>(std::min<uint64_t>(value, 32768));
}

struct Field {
  const char* name;
  uint64_t asked;
  uint64_t minimum;
  uint64_t fallback;
  uint64_t ceiling;
};

kj::Maybe<LimitRefusal> check(const Field& f) {
  if (f.asked == 0) return nullptr;
  if (f.asked < f.minimum) {
    return LimitRefusal{rpc::Reason::LIMIT_TOO_LOW, f.name, f.minimum,
                        std::string(f.name) + " must be at least " + std::to_string(f.minimum)};
  }
  if (f.asked > f.ceiling) {
    return LimitRefusal{
        rpc::Reason::LIMIT_TOO_HIGH, f.name, f.ceiling,
        std::string(f.name) + " may be at most " + std::to_string(f.ceiling) + " on this host"};
  }
  return nullptr;
}

uint64_t value(const Field& f) {
  if (f.asked != 0) return f.asked;
  return std::max(f.minimum, std::min(f.fallback, f.ceiling));
}

uint64_t wholePages(uint64_t bytes) {
  return bytes / kPage * kPage;
}

// disk, tmp, shm and what is written to the root are tmpfs: their pages count as the sandbox's
// memory, and together they must fit. Explicit sizes are kept or refused, defaults shrink.
kj::Maybe<LimitRefusal> fitScratch(ResolvedLimits& r, rpc::Limits::Reader asked) {
  struct Part {
    const char* name;
    uint64_t asked;
    uint64_t* bytes;
  };
  const Part parts[] = {{"diskBytes", asked.getDiskBytes(), &r.diskBytes},
                        {"tmpBytes", asked.getTmpBytes(), &r.tmpBytes},
                        {"shmBytes", asked.getShmBytes(), &r.shmBytes},
                        {"rootBytes", asked.getRootBytes(), &r.rootBytes}};
  uint64_t room = r.memoryBytes - kScratchReserve;
  const Part* largest = nullptr;
  std::vector<const Part*> defaults;
  uint64_t explicitSum = 0;
  for (auto& part : parts) {
    if (part.asked == 0 && part.bytes == &r.rootBytes) continue;  // none
    if (part.asked == 0) {
      room -= kMinScratch;  // a default gets that much in any case
      defaults.push_back(&part);
    } else {
      explicitSum += *part.bytes;  // each at most the ceiling of memory: no overflow
      if (largest == nullptr || *part.bytes > *largest->bytes) largest = &part;
    }
  }
  if (explicitSum > room) {
    return LimitRefusal{rpc::Reason::SCRATCH_EXCEEDS_MEMORY, largest->name, room,
                        "diskBytes, tmpBytes, shmBytes and rootBytes together may be at most " +
                            std::to_string(room) + " with memoryBytes " +
                            std::to_string(r.memoryBytes)};
  }
  // Divide what is left, the smallest wish first, so that none leaves a gap.
  std::sort(defaults.begin(), defaults.end(),
            [](auto* a, auto* b) { return *a->bytes < *b->bytes; });
  uint64_t left = room - explicitSum;
  for (size_t i = 0; i < defaults.size(); ++i) {
    uint64_t share = wholePages(left / (defaults.size() - i));
    uint64_t more = std::min(*defaults[i]->bytes - kMinScratch, share);
    *defaults[i]->bytes = kMinScratch + more;
    left -= more;
  }
  return nullptr;
}

}  // namespace

Ceilings Ceilings::ofThisHost() {
  struct sysinfo info {};
  KJ_SYSCALL(sysinfo(&info));
  long cpus = std::max(1L, sysconf(_SC_NPROCESSORS_ONLN));
  Ceilings c;
  c.memoryBytes = wholePages(uint64_t{info.totalram} * info.mem_unit);
  // The host has that many in all.
  c.pids = pidMax() / 2;
  c.cpuMillis = static_cast<uint32_t>(std::min<long>(cpus, 1'000'000) * 1000);
  c.cpuTimeMs = kDayMs * static_cast<uint64_t>(cpus);
  c.wallMs = kDayMs;
  c.fileSizeBytes = hardLimit(RLIMIT_FSIZE, std::numeric_limits<int64_t>::max());
  c.files = static_cast<uint32_t>(hardLimit(RLIMIT_NOFILE, 1 << 20));
  c.diskBytes = c.memoryBytes;
  c.tmpBytes = c.memoryBytes;
  c.shmBytes = c.memoryBytes;
  c.rootBytes = c.memoryBytes;
  c.outputBytes = 64 * kGiB;  // streamed: it costs no memory
  return c;
}

kj::OneOf<ResolvedLimits, LimitRefusal> resolveLimits(rpc::Limits::Reader asked,
                                                      const Ceilings& c) {
  Field memory{"memoryBytes", asked.getMemoryBytes(), kMinMemory, 512 * kMiB, c.memoryBytes};
  KJ_IF_MAYBE (refusal, check(memory)) return *refusal;
  // Whole pages, as the kernel keeps it, so that what is read back is equal.
  const uint64_t bytes = wholePages(value(memory));
  Field disk{"diskBytes", asked.getDiskBytes(), kMinScratch, std::min(64 * kMiB, bytes / 4),
             c.diskBytes};
  Field tmp{"tmpBytes", asked.getTmpBytes(), kMinScratch, std::min(64 * kMiB, bytes / 8),
            c.tmpBytes};
  Field shm{"shmBytes", asked.getShmBytes(), kMinScratch, std::min(64 * kMiB, bytes / 8),
            c.shmBytes};
  Field root{"rootBytes", asked.getRootBytes(), kMinScratch, 0, c.rootBytes};
  Field pids{"pids", asked.getPids(), 2, 256, c.pids};
  // The kernel's smallest quota is 1 ms of each 100 ms.
  Field cpu{"cpuMillis", asked.getCpuMillis(), 10, 1000, c.cpuMillis};
  Field cpuTime{"cpuTimeMs", asked.getCpuTimeMs(), 10, 60'000, c.cpuTimeMs};
  Field wall{"wallMs", asked.getWallMs(), 10, 60'000, c.wallMs};
  // stdio and a few for the dynamic loader.
  Field files{"files", asked.getFiles(), 8, 1024, c.files};
  Field output{"outputBytes", asked.getOutputBytes(), 1, kMiB, c.outputBytes};
  for (auto* field : {&disk, &tmp, &shm, &root, &pids, &cpu, &cpuTime, &wall, &files, &output}) {
    KJ_IF_MAYBE (refusal, check(*field)) return *refusal;
  }

  ResolvedLimits r;
  r.memoryBytes = bytes;
  r.pids = static_cast<uint32_t>(value(pids));
  r.cpuMillis = static_cast<uint32_t>(value(cpu));
  r.cpuTimeMs = value(cpuTime);
  r.wallMs = value(wall);
  r.files = static_cast<uint32_t>(value(files));
  r.outputBytes = value(output);
  r.diskBytes = wholePages(value(disk));
  r.tmpBytes = wholePages(value(tmp));
  r.shmBytes = wholePages(value(shm));
  if (root.asked != 0) r.rootBytes = wholePages(value(root));
  KJ_IF_MAYBE (refusal, fitScratch(r, asked)) return *refusal;

  Field fileSize{"fileSizeBytes", asked.getFileSizeBytes(), 1, r.diskBytes, c.fileSizeBytes};
  KJ_IF_MAYBE (refusal, check(fileSize)) return *refusal;
  r.fileSizeBytes = value(fileSize);
  return r;
}

}  // namespace cordon::broker
