// The agent's parts that need no agent: the filter of an explained program,
// output accounting, output frames, users, the search for a file of a size, the
// end of stdin.
#include <capnp/serialize.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>

#include "ipc/framing.h"
#include "vm_agent/config.h"
#include "vm_agent/output.h"
#include "vm_agent/output_frame.h"
#include "vm_agent/scratch.h"
#include "vm_agent/users.h"

namespace cordon::agent {
namespace {

// ---- The filter of an explained program ------------------------------------

// errno of a call under `filter`, with nobody who listens; -1: not loaded.
int errnoUnder(std::vector<sock_filter> filter, long number, long a = 0, long b = 0, long c = 0) {
  pid_t child = fork();
  if (child == 0) {
    sock_fprog load = {static_cast<unsigned short>(filter.size()), filter.data()};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &load) != 0) _exit(255);
    _exit(syscall(number, a, b, c) < 0 ? errno : 0);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) && WEXITSTATUS(status) != 255 ? WEXITSTATUS(status) : -1;
}

TEST(AskingFilter, AsksWhereTheProfileRefuses) {
  const std::vector<sock_filter> profile = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getpriority, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EXDEV),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_sync, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  EXPECT_EQ(errnoUnder(profile, SYS_getpriority), EXDEV);
  auto asking = askingFilter(profile);
  EXPECT_EQ(errnoUnder(asking, SYS_getpriority), ENOSYS);
  EXPECT_EQ(errnoUnder(asking, SYS_getpgid), 0);
  EXPECT_EQ(errnoUnder(asking, SYS_sync), -1);
}

TEST(AskingFilter, RefusesASecondListener) {
  const std::vector<sock_filter> all = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  auto asking = askingFilter(all);
  sock_filter pass = all[0];
  const sock_fprog another = {1, &pass};
  auto load = [&](long flags) {
    return errnoUnder(asking, SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags,
                      reinterpret_cast<long>(&another));
  };
  EXPECT_EQ(load(0), 0);
  EXPECT_EQ(load(SECCOMP_FILTER_FLAG_LOG), 0);
  for (long high : {0L, 1L << 32}) {
    EXPECT_EQ(load(high | SECCOMP_FILTER_FLAG_NEW_LISTENER), EBUSY);
    EXPECT_EQ(load(high | SECCOMP_FILTER_FLAG_NEW_LISTENER | SECCOMP_FILTER_FLAG_LOG), EBUSY);
  }
}

// ---- OutputAccount ---------------------------------------------------------

struct Kept {
  std::string head, tail;
  uint64_t tailOffset = 0, dropped = 0;
};

// Feeds `all` in random pieces.
Kept keep(const std::string& all, uint64_t cap, uint32_t seed, size_t largest) {
  std::mt19937 random(seed);
  OutputAccount account(cap);
  Kept kept;
  size_t at = 0;
  while (at < all.size()) {
    size_t n = std::min<size_t>(all.size() - at, 1 + random() % largest);
    if (account.headIsFull()) {
      account.takeTail({reinterpret_cast<const kj::byte*>(all.data()) + at, n});
    } else {
      n = std::min<uint64_t>(n, account.headRoom());
      account.takeHead(n);
      kept.head += all.substr(at, n);
    }
    at += n;
    EXPECT_EQ(account.total(), at);
  }
  auto tail = account.tail();
  kept.tail.assign(reinterpret_cast<const char*>(tail.first.begin()), tail.first.size());
  kept.tail.append(reinterpret_cast<const char*>(tail.second.begin()), tail.second.size());
  kept.tailOffset = tail.offset;
  kept.dropped = account.dropped();
  return kept;
}

TEST(OutputAccount, KeepsHeadAndTailWhateverThePieces) {
  std::string all(200000, '\0');
  std::mt19937 random(7);
  for (auto& c : all) c = static_cast<char>(random());
  for (uint64_t cap : {1, 2, 3, 4, 5, 100, 131071, 131072, 131073, 199999, 200000, 200001}) {
    for (uint32_t seed = 0; seed < 4; ++seed) {
      auto kept = keep(all, cap, seed, seed % 2 == 0 ? 100000 : 3000);
      uint64_t tail = std::min<uint64_t>(cap / 4, OutputAccount::kMaxTail);
      uint64_t dropped = cap < all.size() ? all.size() - cap : 0;
      EXPECT_EQ(kept.dropped, dropped) << cap;
      EXPECT_EQ(kept.head.size() + kept.tail.size() + dropped, all.size()) << cap;
      EXPECT_TRUE(all.compare(0, kept.head.size(), kept.head) == 0) << cap;
      EXPECT_EQ(kept.tailOffset + kept.tail.size(), all.size()) << cap;
      EXPECT_TRUE(all.compare(kept.tailOffset, std::string::npos, kept.tail) == 0) << cap;
      EXPECT_EQ(kept.tail.size(), dropped > 0 ? tail : kept.tail.size()) << cap;
    }
  }
}

TEST(OutputAccount, WithoutACapNothingIsDropped) {
  OutputAccount account(0);
  EXPECT_GE(account.headRoom(), uint64_t{1} << 62);
  account.takeHead(uint64_t{1} << 40);
  EXPECT_FALSE(account.headIsFull());
  EXPECT_EQ(account.dropped(), 0u);
  EXPECT_EQ(account.tail().first.size(), 0u);
  EXPECT_EQ(account.total(), uint64_t{1} << 40);
}

TEST(OutputAccount, NoOutput) {
  OutputAccount account(100);
  EXPECT_EQ(account.total(), 0u);
  EXPECT_EQ(account.dropped(), 0u);
  EXPECT_EQ(account.tail().first.size() + account.tail().second.size(), 0u);
}

// ---- Output frames -----------------------------------------------------------

TEST(OutputFrame, IsWhatTheGenericCodeReads) {
  for (size_t size : {size_t{1}, size_t{7}, size_t{8}, size_t{9}, size_t{4096},
                      static_cast<size_t>(guest::MAX_OUTPUT_CHUNK)}) {
    size_t bytes = outputFrameBytes(size);
    auto words = kj::heapArray<capnp::word>(bytes / sizeof(capnp::word));
    auto raw = words.asBytes();
    memset(raw.begin(), 0xee, raw.size());
    for (size_t i = 0; i < size; ++i) {
      raw[outputDataOffset() + i] = static_cast<kj::byte>(i * 7);
    }
    finishOutputFrame(raw.begin(), 42, guest::OutputStream::STDERR, 1ull << 40, size);

    ipc::FrameReader reader(guest::MAX_FRAME_BYTES);
    size_t at = 0;
    while (at < raw.size()) {
      auto space = reader.space();
      ASSERT_GT(space.size(), 0u);
      size_t n = std::min(space.size(), raw.size() - at);
      memcpy(space.begin(), raw.begin() + at, n);
      reader.commit(n);
      at += n;
    }
    auto frame = reader.next();
    ASSERT_TRUE(frame != nullptr) << size;
    KJ_IF_MAYBE (payload, frame) {
      capnp::FlatArrayMessageReader message(*payload,
                                            ipc::readerOptions(payload->asBytes().size()));
      auto root = message.getRoot<guest::GuestMessage>();
      ASSERT_TRUE(root.isOutput());
      auto output = root.getOutput();
      EXPECT_EQ(output.getExec(), 42u);
      EXPECT_EQ(output.getStream(), guest::OutputStream::STDERR);
      EXPECT_EQ(output.getOffset(), 1ull << 40);
      auto got = output.getBytes();
      ASSERT_EQ(got.size(), size);
      for (size_t i = 0; i < size; ++i) {
        ASSERT_EQ(got[i], static_cast<kj::byte>(i * 7));
      }
    }
    EXPECT_FALSE(reader.partial());
  }
}

// ---- Users -------------------------------------------------------------------

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    char pattern[] = "/tmp/cordon-test-units-XXXXXX";
    path_ = mkdtemp(pattern);
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(Users, PasswdIsReadWithoutTrust) {
  TemporaryDirectory dir;
  std::string file = dir / "passwd";
  std::ofstream(file) << "root:x:0:0:root:/root:/bin/sh\n"
                      << "\n:::\nbroken\nhalf:x:5\n"
                      << "minus:x:-1:-1::/:\n"
                      << "huge:x:4294967296:1::/:\n"
                      << "space: x: 7:7::/:\n"
                      << std::string(5000, 'y') << ":x:9:9::/:\n"
                      << ":x:11:11::/:\n"
                      << "user:x:1000:1001::/work:/bin/sh\n"
                      << "last:x:1002:1003::/:";
  auto find = [&](const char* name) { return findInPasswd(file.c_str(), name, 0); };
  EXPECT_EQ(find("root")->uid, 0u);
  EXPECT_EQ(find("user")->uid, 1000u);
  EXPECT_EQ(find("user")->gid, 1001u);
  EXPECT_EQ(find("last")->gid, 1003u);
  for (const char* bad : {"broken", "half", "minus", "huge", "space", "yyyy", "nobody", "x"}) {
    EXPECT_FALSE(find(bad)) << bad;
  }
  EXPECT_EQ(findInPasswd(file.c_str(), "", 1000)->gid, 1001u);
  EXPECT_FALSE(findInPasswd(file.c_str(), "", 9));
  EXPECT_FALSE(findInPasswd((dir / "none").c_str(), "root", 0));
  // Neither a fifo nor a directory holds the agent up.
  ASSERT_EQ(mkfifo((dir / "fifo").c_str(), 0644), 0);
  EXPECT_FALSE(findInPasswd((dir / "fifo").c_str(), "root", 0));
  EXPECT_FALSE(findInPasswd(dir.path().c_str(), "root", 0));
  // What lies past 1 MiB is not found.
  std::ofstream large(dir / "large");
  for (int i = 0; i < 40000; ++i)
    large << "u" << i << ":x:" << i << ":" << i << "::/home/u:/bin/sh\n";
  large.close();
  EXPECT_TRUE(findInPasswd((dir / "large").c_str(), "u100", 0));
  EXPECT_FALSE(findInPasswd((dir / "large").c_str(), "u39999", 0));
}

TEST(Users, Resolving) {
  TemporaryDirectory dir;
  std::string file = dir / "passwd";
  std::ofstream(file) << "user:x:1000:1001::/:\nagent:x:65000:65000::/:\nfar:x:70000:70000::/:\n";
  auto resolve = [&](std::string_view user) {
    return resolveUser(user, {1000, 1000}, 65000, file.c_str());
  };
  auto expect = [&](std::string_view user, uint32_t uid, uint32_t gid) {
    auto result = resolve(user);
    EXPECT_EQ(result.error, 0) << user;
    EXPECT_EQ(result.ids.uid, uid) << user;
    EXPECT_EQ(result.ids.gid, gid) << user;
  };
  expect("", 1000, 1000);
  expect("user", 1000, 1001);
  expect("1000", 1000, 1001);
  expect("77", 77, 77);
  expect("0:5", 0, 5);
  expect("65535", 65535, 65535);
  for (std::string_view refused :
       {"agent", "65000", "65000:1", "1:65000", "far", "65536", "1:65536"}) {
    EXPECT_EQ(resolve(refused).error, EPERM) << refused;
  }
  for (std::string_view malformed : {"1:", ":1", "1:2:3", "12x", "0x10", "4294967296"}) {
    EXPECT_EQ(resolve(malformed).error, EINVAL) << malformed;
  }
  EXPECT_EQ(resolve(std::string(300, 'x')).error, EINVAL);
  EXPECT_EQ(resolve(std::string_view("us\0er", 5)).error, EINVAL);
  EXPECT_EQ(resolve("nobody").error, ENOENT);
}

// ---- Files at the limit --------------------------------------------------------

TEST(Scratch, TheSearchIsBounded) {
  TemporaryDirectory dir;
  auto make = [&](const std::string& name, size_t size) {
    std::filesystem::create_directories(std::filesystem::path(dir / name).parent_path());
    std::ofstream(dir / name) << std::string(size, 'x');
  };
  make("1/2/3/found", 777);
  EXPECT_EQ(findFileOfSize(dir.path(), 777, timespec{}), dir / "1/2/3/found");
  EXPECT_EQ(findFileOfSize(dir.path(), 776, timespec{}), "");
  EXPECT_EQ(findFileOfSize(dir / "none", 777, timespec{}), "");
  // What an earlier exec left at that size.
  struct stat found;
  ASSERT_EQ(stat((dir / "1/2/3/found").c_str(), &found), 0);
  EXPECT_EQ(findFileOfSize(dir.path(), 777, found.st_ctim), dir / "1/2/3/found");
  EXPECT_EQ(findFileOfSize(dir.path(), 777, timespec{found.st_ctim.tv_sec + 1, 0}), "");
  // A level deeper, and behind a link.
  make("a/b/c/d/deep", 888);
  EXPECT_EQ(findFileOfSize(dir.path(), 888, timespec{}), "");
  ASSERT_EQ(symlink("a/b/c/d", (dir / "link").c_str()), 0);
  ASSERT_EQ(symlink("a/b/c/d/deep", (dir / "file").c_str()), 0);
  EXPECT_EQ(findFileOfSize(dir.path(), 888, timespec{}), "");
  // Past 512 entries it gives up.
  TemporaryDirectory crowd;
  for (int i = 0; i < 600; ++i) std::ofstream(crowd / ("f" + std::to_string(i))) << "x";
  std::filesystem::create_directory(crowd / "sub");
  std::ofstream(crowd / "sub/wanted") << std::string(999, 'x');
  EXPECT_EQ(findFileOfSize(crowd.path(), 999, timespec{}), "");
}

}  // namespace
}  // namespace cordon::agent
