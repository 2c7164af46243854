#include "escape_suite/outside.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <system_error>
#include <thread>

namespace cordon::escape {
namespace {

bool connectTcp(const std::string& address, int port) {
  Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  inet_pton(AF_INET, address.c_str(), &to.sin_addr);
  return connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0;
}

TEST(Listeners, HearOthersAndNotTheirOwnCheck) {
  Listeners listeners({});
  EXPECT_TRUE(listeners.check());
  EXPECT_TRUE(listeners.heard().empty());
  ASSERT_TRUE(connectTcp("127.0.0.1", listeners.tcpPort()));
  std::vector<std::string> heard = listeners.heard();
  ASSERT_EQ(heard.size(), 1u);
  EXPECT_TRUE(heard[0].starts_with("tcp 127.0.0.1 port ")) << heard[0];
  EXPECT_TRUE(listeners.heard().empty());
}

TEST(Listeners, HearAnAbstractSocketAndADatagram) {
  Listeners listeners({});
  Fd stream(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  const std::string& abstract = listeners.abstractName();
  memcpy(to.sun_path + 1, abstract.data(), abstract.size());
  auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + abstract.size());
  ASSERT_EQ(connect(stream.get(), reinterpret_cast<sockaddr*>(&to), length), 0);

  Fd datagram(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_in udp{};
  udp.sin_family = AF_INET;
  udp.sin_port = htons(static_cast<uint16_t>(listeners.tcpPort()));
  inet_pton(AF_INET, "127.0.0.1", &udp.sin_addr);
  ASSERT_EQ(sendto(datagram.get(), "x", 1, 0, reinterpret_cast<sockaddr*>(&udp), sizeof(udp)), 1);

  std::vector<std::string> heard = listeners.heard();
  EXPECT_EQ(heard.size(), 2u);
  EXPECT_NE(std::find(heard.begin(), heard.end(), "abstract unix socket"), heard.end());
}

TEST(Listeners, ListenOnFurtherAddresses) {
  Listeners listeners({"127.0.0.2"});
  std::vector<std::string> addresses = listeners.addresses();
  ASSERT_EQ(addresses.size(), 2u);
  EXPECT_EQ(addresses[0], "127.0.0.2");
  EXPECT_TRUE(listeners.check());
  ASSERT_TRUE(connectTcp("127.0.0.2", std::stoi(addresses[1])));
  EXPECT_EQ(listeners.heard().size(), 1u);
}

TEST(Listeners, RefuseAnAddressThatIsNone) {
  EXPECT_THROW(Listeners({"not-an-address"}), std::system_error);
  EXPECT_THROW(Listeners({"192.0.2.77"}), std::system_error);  // documentation: nobody's
}

TEST(HostPlaces, FindsWhatCameIntoBeingAndRemovesIt) {
  std::string made;
  std::string scratch;
  {
    HostPlaces places;
    bool complete = false;
    EXPECT_TRUE(places.found(&complete).empty());
    ASSERT_GE(places.paths().size(), 8u);
    made = places.paths().back();
    scratch = made.substr(0, made.rfind('/'));
    std::ofstream(made) << "x";
    EXPECT_EQ(places.found(&complete), std::vector<std::string>{made});
    struct stat status {};
    ASSERT_EQ(stat(scratch.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 07777, 01777u);
  }
  EXPECT_NE(access(made.c_str(), F_OK), 0);
  EXPECT_NE(access(scratch.c_str(), F_OK), 0);
}

TEST(ProcessWithArgument, SeesAProcessWhileItLives) {
  std::string nonce = randomName();
  EXPECT_EQ(nonce.size(), 32u);
  EXPECT_NE(nonce, randomName());
  EXPECT_FALSE(processWithArgument(nonce));
  int hold[2];
  ASSERT_EQ(pipe(hold), 0);
  pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    dup2(hold[0], 0);
    close(hold[1]);
    // Waits for the end of its input.
    execl("/bin/sh", "sh", "-c", "read line", nonce.c_str(), static_cast<char*>(nullptr));
    _exit(127);
  }
  auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  bool seen = false;
  while (!seen && std::chrono::steady_clock::now() < end) {
    seen = processWithArgument(nonce);
    if (!seen) std::this_thread::yield();
  }
  EXPECT_TRUE(seen);
  EXPECT_FALSE(processWithArgument(nonce.substr(1)));
  close(hold[1]);
  close(hold[0]);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_FALSE(processWithArgument(nonce));
}

}  // namespace
}  // namespace cordon::escape
