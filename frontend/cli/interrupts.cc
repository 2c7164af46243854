#include "frontend/cli/interrupts.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace cordon::cli {

Interrupts::Interrupts(std::stop_source source) : stop(std::move(source)) {
  sigset_t wanted;
  sigemptyset(&wanted);
  for (int number : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction action {};
    sigaction(number, nullptr, &action);
    if (action.sa_handler != SIG_IGN) sigaddset(&wanted, number);
  }
  pthread_sigmask(SIG_BLOCK, &wanted, &before);
  signals = signalfd(-1, &wanted, SFD_CLOEXEC);
  if (signals < 0) throw std::system_error(errno, std::system_category(), "signalfd");
  if (pipe2(wake, O_CLOEXEC) < 0) throw std::system_error(errno, std::system_category(), "pipe2");
  thread = std::thread([this] { watch(); });
}

Interrupts::~Interrupts() {
  close(wake[1]);
  thread.join();
  close(wake[0]);
  close(signals);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Interrupts::watch() {
  while (true) {
    pollfd ready[2] = {{signals, POLLIN, 0}, {wake[0], POLLIN, 0}};
    if (poll(ready, 2, -1) < 0 && errno != EINTR) return;
    if (ready[1].revents != 0) return;
    signalfd_siginfo info{};
    if (ready[0].revents == 0 || read(signals, &info, sizeof(info)) != sizeof(info)) continue;
    int number = int(info.ssi_signo);
    if (came.exchange(number) != 0) _exit(128 + number);
    stop.request_stop();
  }
}

}  // namespace cordon::cli
