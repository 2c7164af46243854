#include "frontend/cli/interrupts.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>

namespace cordon::cli {
namespace {

sigset_t notIgnored() {
  sigset_t wanted;
  sigemptyset(&wanted);
  for (int number : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction action {};
    sigaction(number, nullptr, &action);
    if (action.sa_handler != SIG_IGN) sigaddset(&wanted, number);
  }
  return wanted;
}

}  // namespace

Interrupts::Interrupts(std::stop_source source) : Interrupts(std::move(source), notIgnored()) {}

Interrupts::Interrupts(std::stop_source source, const sigset_t& wanted)
    : stop(std::move(source)),
      blocked(wanted),
      signals(check(signalfd(-1, &wanted, SFD_CLOEXEC), "signalfd")),
      wake(makePipe()),
      thread([this] { watch(); }) {}

Interrupts::~Interrupts() {
  wake.write = Fd();
  thread.join();
}

void Interrupts::watch() {
  while (true) {
    pollfd ready[2] = {{signals.get(), POLLIN, 0}, {wake.read.get(), POLLIN, 0}};
    if (poll(ready, 2, -1) < 0 && errno != EINTR) return;
    if (ready[1].revents != 0) return;
    signalfd_siginfo info{};
    if (ready[0].revents == 0 || read(signals.get(), &info, sizeof(info)) != sizeof(info)) continue;
    int number = int(info.ssi_signo);
    if (came.exchange(number) != 0) _exit(128 + number);
    stop.request_stop();
  }
}

}  // namespace cordon::cli
