// The loop thread and the broker link where descriptors or luck run out.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <kj/debug.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <future>
#include <stdexcept>

#include "frontend/link/broker_link.h"
#include "frontend/link/loop_thread.h"

namespace cordon::link {
namespace {

using namespace std::chrono_literals;

TEST(LoopThread, WorkThatThrowsIsTheOnlyOneThatSuffers) {
  LoopThread loop("test-loop");
  std::atomic<int> ran{0};
  loop.post([] { throw std::runtime_error("of the standard library"); });
  loop.post([&] { ++ran; });
  loop.post([] { KJ_FAIL_REQUIRE("of KJ"); });
  loop.post([&] { ++ran; });
  loop.call([] {});
  EXPECT_EQ(ran, 2);
  EXPECT_ANY_THROW(loop.call([] { throw std::runtime_error("told to the caller"); }));
}

// While it lives, this process can open no further descriptor.
class NoDescriptors {
 public:
  NoDescriptors() {
    KJ_SYSCALL(getrlimit(RLIMIT_NOFILE, &before_));
    int lowest;
    KJ_SYSCALL(lowest = open("/dev/null", O_RDONLY | O_CLOEXEC));
    close(lowest);
    rlimit none = before_;
    none.rlim_cur = static_cast<rlim_t>(lowest);
    KJ_SYSCALL(setrlimit(RLIMIT_NOFILE, &none));
  }
  ~NoDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }
  KJ_DISALLOW_COPY(NoDescriptors);

 private:
  rlimit before_{};
};

class BrokerLinkTest : public testing::Test {
 protected:
  BrokerLinkTest() {
    char name[] = "/tmp/cordon-link-test-XXXXXX";
    KJ_REQUIRE(mkdtemp(name) != nullptr);
    dir_ = name;
    path_ = dir_ + "/broker.sock";
  }
  ~BrokerLinkTest() override { std::filesystem::remove_all(dir_); }

  kj::AutoCloseFd listenThere() {
    int raw;
    KJ_SYSCALL(raw = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    kj::AutoCloseFd fd(raw);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path_.copy(address.sun_path, sizeof address.sun_path - 1);
    KJ_SYSCALL(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address));
    KJ_SYSCALL(listen(fd, 4));
    return fd;
  }

  std::string dir_, path_;
};

TEST_F(BrokerLinkTest, ItComesUpOnceThereAreDescriptorsAgain) {
  auto listener = listenThere();
  LoopThread loop("test-loop");
  kj::Maybe<kj::Own<BrokerLink>> link;
  std::atomic<int> failures{0};
  std::promise<void> up;
  auto isUp = up.get_future();
  {
    NoDescriptors none;
    loop.call([&] {
      link = kj::heap<BrokerLink>(
          loop.io(), BrokerLink::Options{path_, [&](bool works, const std::string& error) {
                                           if (works) return up.set_value();
                                           EXPECT_FALSE(error.empty());
                                           ++failures;
                                         }});
    });
    auto until = std::chrono::steady_clock::now() + 10s;
    while (failures < 3 && std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(2ms);
    }
  }
  EXPECT_GE(failures, 3);
  EXPECT_EQ(isUp.wait_for(10s), std::future_status::ready);
  loop.call([&] { link = nullptr; });
}

TEST_F(BrokerLinkTest, APathThatFitsNoAddressIsRefusedAtOnce) {
  LoopThread loop("test-loop");
  auto make = [&] {
    loop.call([&] {
      BrokerLink link(loop.io(),
                      BrokerLink::Options{std::string(200, 'x'), [](bool, const std::string&) {}});
    });
  };
  EXPECT_ANY_THROW(make());
}

}  // namespace
}  // namespace cordon::link
