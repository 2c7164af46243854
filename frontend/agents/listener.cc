#include "frontend/agents/listener.h"

#include <errno.h>
#include <kj/debug.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <string_view>

namespace cordon::agents {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kNudgeEvery = 20 * kj::MILLISECONDS;
constexpr int kNudges = 100;
// What a program past its rate waits for at least: so many calls are answered
// in a row then.
constexpr int kPauseMs = 10;
// Newer kernels may have longer structures.
constexpr size_t kRoom = 512;
static_assert(sizeof(seccomp_notif) <= kRoom && sizeof(seccomp_notif_resp) <= kRoom);

int nudgeSignal() {
  return SIGRTMIN + 1;
}

// So that the signal interrupts a system call and does nothing else.
void installNudge() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction nothing = {};
    nothing.sa_handler = [](int) {};
    KJ_SYSCALL(sigaction(nudgeSignal(), &nothing, nullptr));
  });
}

kj::AutoCloseFd makeEvent() {
  int fd;
  KJ_SYSCALL(fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd");
  return kj::AutoCloseFd(fd);
}

void signalEvent(int fd) {
  uint64_t one = 1;
  (void)!write(fd, &one, sizeof(one));
}

// A bucket of calls that fills with time.
class Pace {
 public:
  // Whether one more may be answered now.
  bool mayGoOn() {
    auto now = Clock::now();
    std::chrono::duration<double> passed = now - last_;
    last_ = now;
    left_ = std::min(Listener::kBurst, left_ + passed.count() * Listener::kPerSecond);
    return left_ >= 1;
  }
  void spend() { left_ -= 1; }

 private:
  double left_ = Listener::kBurst;
  Clock::time_point last_ = Clock::now();
};

}  // namespace

bool isSeccompListener(int fd) {
  // The name is the kernel's own: every file that has a path is shown with a
  // '/' in front. A process may always follow the links of its own /proc/self/fd.
  char target[64];
  std::string link = "/proc/self/fd/" + std::to_string(fd);
  ssize_t length = readlink(link.c_str(), target, sizeof(target));
  return length > 0 &&
         std::string_view(target, static_cast<size_t>(length)) == "anon_inode:seccomp notify";
}

std::shared_ptr<void> ExplainSlots::take(uint32_t uid) {
  std::lock_guard lock(state_->mutex);
  auto own = state_->perUser.find(uid);
  size_t mine = own == state_->perUser.end() ? 0 : own->second;
  if (state_->all >= kMost || mine >= kMostPerUser) return nullptr;
  ++state_->perUser[uid];
  ++state_->all;
  return {state_.get(), [state = state_, uid](void*) {
            std::lock_guard ending(state->mutex);
            --state->all;
            auto one = state->perUser.find(uid);
            if (--one->second == 0) state->perUser.erase(one);
          }};
}

// What the thread has: it may outlive the Listener.
struct Listener::Service {
  Service(kj::AutoCloseFd fd, Program profile, std::shared_ptr<void> taken)
      : listener(kj::mv(fd)), calls(std::move(profile)), slot(std::move(taken)) {}

  kj::AutoCloseFd listener;
  kj::AutoCloseFd wake = makeEvent(), done = makeEvent();
  std::atomic<bool> stopping{false}, ended{false};
  RefusedCalls calls;  // the thread's own until it has ended
  std::shared_ptr<void> slot;

  void run() {
    serve();
    // Whoever has the filter gets ENOSYS from now on, whoever else has a copy.
    listener = nullptr;
    slot = nullptr;
    ended = true;
    signalEvent(done);
  }

  void serve() {
    Pace pace;
    while (!stopping) {
      bool due = pace.mayGoOn();
      pollfd fds[] = {{wake, POLLIN, 0}, {listener, POLLIN, 0}};
      int ready = poll(fds, due ? 2 : 1, due ? -1 : kPauseMs);
      if (ready <= 0) continue;
      if (fds[0].revents != 0) return;
      // Hung up: no process has the filter any more.
      if ((fds[1].revents & POLLIN) == 0 || !serveOne()) return;
      pace.spend();
    }
  }

  // False: the listener is no use any more.
  bool serveOne() {
    alignas(seccomp_notif) char asked[kRoom] = {}, answered[kRoom] = {};
    auto& request = *reinterpret_cast<seccomp_notif*>(asked);
    auto& response = *reinterpret_cast<seccomp_notif_resp*>(answered);
    if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &request) != 0) return isPassing(errno);
    response.id = request.id;
    // Never SECCOMP_USER_NOTIF_FLAG_CONTINUE: what was checked could be changed
    // before the kernel reads it again.
    response.error = -calls.answerTo(request.data);
    if (ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &response) != 0) return isPassing(errno);
    calls.count(request.data);
    return true;
  }

  // ENOENT: who made the call was killed meanwhile.
  static bool isPassing(int error) { return error == EINTR || error == ENOENT || error == EAGAIN; }
};

Listener::Listener(kj::UnixEventPort& port, kj::Timer& timer, kj::AutoCloseFd fd, Program profile,
                   std::shared_ptr<void> slot)
    : timer_(timer),
      service_(std::make_shared<Service>(kj::mv(fd), std::move(profile), std::move(slot))),
      done_(port, service_->done, kj::UnixEventPort::FdObserver::OBSERVE_READ) {
  installNudge();
  thread_ = std::thread([service = service_] {
    pthread_setname_np(pthread_self(), "explain");
    service->run();
  });
}

Listener::~Listener() noexcept(false) {
  service_->stopping = true;
  signalEvent(service_->wake);
  if (stopped()) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

kj::Promise<void> Listener::stop() {
  service_->stopping = true;
  signalEvent(service_->wake);
  // It ends by itself with the last process, and the observer tells of what
  // becomes readable from now on.
  if (stopped()) return kj::READY_NOW;
  return done_.whenBecomesReadable().exclusiveJoin(nudge(kNudges));
}

// In vain, and harmless, unless somebody else took the notification that we were
// about to receive; again, since it may come just before the system call.
kj::Promise<void> Listener::nudge(int left) {
  if (left == 0) return kj::READY_NOW;
  return timer_.afterDelay(kNudgeEvery).then([this, left]() -> kj::Promise<void> {
    if (stopped()) return kj::READY_NOW;
    pthread_kill(thread_.native_handle(), nudgeSignal());
    return nudge(left - 1);
  });
}

bool Listener::stopped() const {
  return service_->ended;
}

const RefusedCalls& Listener::calls() const {
  KJ_REQUIRE(stopped(), "the listener is still at work");
  return service_->calls;
}

}  // namespace cordon::agents
