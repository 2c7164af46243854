#include "ipc/fdpass.h"

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <kj/debug.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <set>
#include <string>

namespace cordon::ipc {
namespace {

size_t openFds() {
  size_t count = 0;
  DIR* dir = opendir("/proc/self/fd");
  while (readdir(dir) != nullptr) ++count;
  closedir(dir);
  return count;
}

kj::ArrayPtr<const kj::byte> bytes(const std::string& text) {
  return {reinterpret_cast<const kj::byte*>(text.data()), text.size()};
}

TEST(FdPass, DataAndDescriptors) {
  for (int type : {SOCK_STREAM, SOCK_SEQPACKET}) {
    auto pair = socketPair(type);
    int pipeFds[2];
    ASSERT_EQ(pipe2(pipeFds, O_CLOEXEC), 0);
    kj::AutoCloseFd readEnd(pipeFds[0]), writeEnd(pipeFds[1]);
    const int fds[] = {readEnd, writeEnd};
    ASSERT_EQ(sendWithFds(pair.a, bytes("hello"), fds), SendResult::kSent);

    kj::byte buffer[64];
    auto result = receiveWithFds(pair.b, buffer, 2);
    ASSERT_TRUE(result != nullptr);
    KJ_IF_MAYBE (received, result) {
      EXPECT_EQ(received->bytes, 5);
      EXPECT_FALSE(received->truncated);
      ASSERT_EQ(received->fds.size(), 2u);
      EXPECT_EQ(fcntl(received->fds[0], F_GETFD), FD_CLOEXEC);
      struct stat ours, theirs;
      ASSERT_EQ(fstat(readEnd, &ours), 0);
      ASSERT_EQ(fstat(received->fds[0], &theirs), 0);
      EXPECT_EQ(ours.st_ino, theirs.st_ino);
    }
  }
}

TEST(FdPass, WouldBlockEofAndPeerGone) {
  auto pair = socketPair(SOCK_SEQPACKET);
  kj::byte buffer[16];
  EXPECT_TRUE(receiveWithFds(pair.b, buffer, 0) == nullptr);
  SendResult last = SendResult::kSent;
  for (int i = 0; i < 100000 && last == SendResult::kSent; ++i) {
    last = sendWithFds(pair.a, bytes(std::string(1000, 'x')), nullptr);
  }
  EXPECT_EQ(last, SendResult::kWouldBlock);

  auto second = socketPair(SOCK_SEQPACKET);
  second.a = nullptr;
  auto result = receiveWithFds(second.b, buffer, 0);
  ASSERT_TRUE(result != nullptr);
  KJ_IF_MAYBE (received, result) EXPECT_EQ(received->bytes, 0);
  EXPECT_EQ(sendWithFds(second.b, bytes("x"), nullptr), SendResult::kPeerGone);
}

TEST(FdPass, ExcessDescriptorsAreClosedAndNamed) {
  for (size_t sent : {1, 2, 3, 9, 40}) {
    auto pair = socketPair(SOCK_SEQPACKET);
    std::vector<int> fds(sent, STDERR_FILENO);
    ASSERT_EQ(sendWithFds(pair.a, bytes("x"), {fds.data(), fds.size()}), SendResult::kSent);
    size_t before = openFds();
    kj::byte buffer[16];
    {
      auto result = receiveWithFds(pair.b, buffer, 2);
      KJ_IF_MAYBE (received, result) {
        EXPECT_EQ(received->fds.size(), std::min<size_t>(sent, 2));
        EXPECT_EQ(received->truncated, sent > 2) << sent;
        EXPECT_EQ(openFds(), before + received->fds.size());
      } else {
        FAIL() << "nothing received";
      }
    }
    EXPECT_EQ(openFds(), before);
  }
}

TEST(FdPass, OversizedDatagramIsTruncated) {
  auto pair = socketPair(SOCK_SEQPACKET);
  ASSERT_EQ(sendWithFds(pair.a, bytes(std::string(100, 'x')), nullptr), SendResult::kSent);
  kj::byte buffer[16];
  auto result = receiveWithFds(pair.b, buffer, 0);
  ASSERT_TRUE(result != nullptr);
  KJ_IF_MAYBE (received, result) EXPECT_TRUE(received->truncated);
}

TEST(FdPass, FaultsThrow) {
  kj::byte buffer[16];
  EXPECT_ANY_THROW(receiveWithFds(-1, buffer, 0));
  EXPECT_ANY_THROW(sendWithFds(-1, bytes("x"), nullptr));
}

}  // namespace
}  // namespace cordon::ipc
