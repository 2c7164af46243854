// vm-agent: the first process of every sandbox.
//
// It is told what to do over the control socket on its fd 0 (ipc/control.h) and
// runs programs for the frontends whose streams arrive there (ipc/guest.capnp).
#include <fcntl.h>
#include <kj/debug.h>
#include <kj/io.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdio>

#include "vm_agent/agent.h"

namespace cordon::agent {
namespace {

constexpr int kFirstFreeFd = 10;

bool isControlSocket(int fd) {
  int type = 0;
  socklen_t size = sizeof(type);
  return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_SEQPACKET;
}

kj::AutoCloseFd moveControlSocket() {
  int fd;
  KJ_SYSCALL(fd = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, kFirstFreeFd));
  return kj::AutoCloseFd(fd);
}

// 0 to 2 stay open for ever, so that no pipe of an exec is ever one of them.
void fillStandardFds() {
  int null;
  KJ_SYSCALL(null = open("/dev/null", O_RDWR | O_CLOEXEC));
  kj::AutoCloseFd owned(null);
  KJ_SYSCALL(dup2(null, STDIN_FILENO));
  KJ_SYSCALL(dup2(null, STDOUT_FILENO));
  if (fcntl(STDERR_FILENO, F_GETFD) < 0) {
    KJ_SYSCALL(dup2(null, STDERR_FILENO));
  }
  if (null <= STDERR_FILENO) owned.release();
}

void closeInherited(int control) {
  KJ_SYSCALL(syscall(SYS_close_range, 3u, static_cast<unsigned>(control) - 1, 0));
  KJ_SYSCALL(syscall(SYS_close_range, static_cast<unsigned>(control) + 1, UINT_MAX, 0));
}

rlimit raiseFileLimit() {
  rlimit original = {};
  KJ_SYSCALL(getrlimit(RLIMIT_NOFILE, &original));
  rlimit raised = {original.rlim_max, original.rlim_max};
  KJ_SYSCALL(setrlimit(RLIMIT_NOFILE, &raised));
  return original;
}

// Nothing interrupts the agent: what it wants to know of comes as a read. And
// nothing is ignored, for the programs' sake: that would outlive their exec.
kj::AutoCloseFd takeSignals() {
  struct sigaction plain = {};
  plain.sa_handler = SIG_DFL;
  for (int signal = 1; signal < NSIG; ++signal) sigaction(signal, &plain, nullptr);
  // glibc keeps two to itself, and whoever starts us by posix_spawn has one of
  // them ignored.
  struct {
    void* handler;
    unsigned long flags;
    void* restorer;
    uint64_t mask;
  } kernels = {};
  for (int signal : {32, 33})
    syscall(SYS_rt_sigaction, signal, &kernels, nullptr, sizeof(uint64_t));
  sigset_t all;
  sigfillset(&all);
  for (int fault : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT}) sigdelset(&all, fault);
  KJ_SYSCALL(sigprocmask(SIG_SETMASK, &all, nullptr));
  sigset_t wanted;
  sigemptyset(&wanted);
  sigaddset(&wanted, SIGCHLD);
  sigaddset(&wanted, SIGTERM);
  int fd;
  KJ_SYSCALL(fd = signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK));
  return kj::AutoCloseFd(fd);
}

int run() {
  // First: until then a program of the same uid could read and trace us.
  KJ_SYSCALL(prctl(PR_SET_DUMPABLE, 0, 0, 0, 0));
  auto control = moveControlSocket();
  fillStandardFds();
  closeInherited(control);
  auto originalFiles = raiseFileLimit();
  auto signals = takeSignals();

  Agent agent(kj::mv(control), kj::mv(signals), originalFiles);
  auto failure = kj::runCatchingExceptions([&]() { agent.run(); });
  // A state that was not foreseen: nothing may be left running in it.
  KJ_IF_MAYBE (exception, failure) {
    fprintf(stderr, "vm-agent: %s\n", exception->getDescription().cStr());
  }
  agent.end(1);
}

}  // namespace
}  // namespace cordon::agent

int main() {
  if (!cordon::agent::isControlSocket(STDIN_FILENO)) {
    fprintf(stderr,
            "vm-agent: fd 0 is not a control socket. This program is started by cordon-broker as "
            "the first process of a sandbox.\n");
    return 2;
  }
  auto failure = kj::runCatchingExceptions([]() { cordon::agent::run(); });
  KJ_IF_MAYBE (exception, failure) {
    fprintf(stderr, "vm-agent: %s\n", exception->getDescription().cStr());
  }
  return 1;
}
