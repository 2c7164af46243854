// A process under a filter that asks, for tests: what an explained program is to
// the frontend.
#pragma once
#include <gtest/gtest.h>
#include <kj/debug.h>
#include <kj/io.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <optional>
#include <vector>

#include "ipc/fdpass.h"

namespace cordon::agents {

class ExplainedChild {
 public:
  // Runs `program` under `filter` once go() was called, and ends with what it
  // returns. The filter must let sendmsg, read and exit_group pass.
  ExplainedChild(std::vector<sock_filter> filter, const std::function<int()>& program) {
    auto pair = ipc::socketPair(SOCK_SEQPACKET);
    KJ_SYSCALL(pid_ = fork());
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
      _exit(run(pair.b, filter, program));
    }
    pair.b = nullptr;
    kj::byte byte;
    KJ_SYSCALL(recv(pair.a, &byte, 1, MSG_PEEK));
    auto received = ipc::receiveWithFds(pair.a, kj::arrayPtr(&byte, 1), 1);
    auto& message = KJ_REQUIRE_NONNULL(received);
    KJ_REQUIRE(message.fds.size() == 1, "no listener", byte);
    listener_ = kj::mv(message.fds[0]);
    go_ = kj::mv(pair.a);
  }
  ~ExplainedChild() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  ExplainedChild(const ExplainedChild&) = delete;
  ExplainedChild& operator=(const ExplainedChild&) = delete;

  kj::AutoCloseFd takeListener() { return kj::mv(listener_); }
  int listener() const { return listener_; }
  void go() { KJ_SYSCALL(send(go_, "g", 1, MSG_NOSIGNAL)); }
  // What it returned; -1 when it was killed.
  int wait() {
    int status = 0;
    KJ_SYSCALL(waitpid(pid_, &status, 0));
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  static int run(int socket, std::vector<sock_filter>& filter,
                 const std::function<int()>& program) {
    const sock_fprog load = {static_cast<unsigned short>(filter.size()), filter.data()};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    auto flags = SECCOMP_FILTER_FLAG_NEW_LISTENER | SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
    auto fd = static_cast<int>(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &load));
    auto why = static_cast<kj::byte>(fd < 0 ? errno : 0);
    ipc::sendWithFds(socket, kj::arrayPtr(&why, 1),
                     kj::arrayPtr(static_cast<const int*>(&fd), fd < 0 ? size_t{0} : size_t{1}));
    close(fd);
    char byte;
    if (read(socket, &byte, 1) != 1) return 99;
    return program();
  }

  pid_t pid_ = 0;
  kj::AutoCloseFd listener_, go_;
};

// `asked` is asked about, all else passes.
inline std::vector<sock_filter> askingAbout(long asked) {
  return {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
          BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(asked), 0, 1),
          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
}

}  // namespace cordon::agents
