#include "frontend/cli/up/part.h"

#include <fcntl.h>
#include <grp.h>
#include <linux/close_range.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cstdlib>
#include <cstring>

#include "jailer/capabilities.h"

namespace cordon::up {
namespace {

// sd_listen_fds(3).
constexpr int kListenFd = 3;

// What went wrong between fork and exec, as the child tells it.
struct Failure {
  int error = 0;
  char step[60] = {};
};

// In the child: tells the parent and ends.
class Teller {
 public:
  explicit Teller(int descriptor) : fd(descriptor) {}
  void must(bool done, const char* step) const {
    if (!done) fail(step);
  }
  [[noreturn]] void fail(const char* step) const {
    Failure failure;
    failure.error = errno;
    strncpy(failure.step, step, sizeof(failure.step) - 1);
    // Nobody to tell when this fails, too.
    if (write(fd, &failure, sizeof(failure)) < 0) _exit(126);
    _exit(127);
  }

 private:
  int fd;
};

std::vector<std::string> environment(const PartSpec& spec) {
  std::vector<std::string> env = {
      "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"};
  for (const char* name : {"LANG", "TZ", "HOME", "ASAN_OPTIONS", "UBSAN_OPTIONS", "LSAN_OPTIONS",
                           "GRPC_VERBOSITY", "GRPC_TRACE"}) {
    if (const char* value = getenv(name)) env.push_back(std::string(name) + "=" + value);
  }
  env.push_back("NOTIFY_SOCKET=" + spec.notifySocket);
  env.push_back("LISTEN_FDS=1");
  env.push_back("LISTEN_FDNAMES=" + spec.socketName);
  return env;
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (std::string& string : strings) result.push_back(string.data());
  result.push_back(nullptr);
  return result;
}

void resetSignals(const Teller& teller) {
  for (int number = 1; number < NSIG; ++number) {
    if (number == SIGKILL || number == SIGSTOP) continue;
    ::signal(number, SIG_DFL);  // EINVAL for those of libc's own
  }
  sigset_t none;
  sigemptyset(&none);
  teller.must(sigprocmask(SIG_SETMASK, &none, nullptr) == 0, "unblocking signals");
}

// stdin: nothing; stdout: our stderr, since ours is for the line `ready`; 3:
// the socket. Everything else is closed by exec.
void arrangeDescriptors(const PartSpec& spec, const Teller& teller) {
  int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  teller.must(null >= 0 && dup2(null, STDIN_FILENO) >= 0, "opening /dev/null");
  teller.must(dup2(STDERR_FILENO, STDOUT_FILENO) >= 0, "joining standard output to error");
  teller.must(syscall(SYS_close_range, 3u, ~0u, unsigned(CLOSE_RANGE_CLOEXEC)) == 0, "close_range");
  if (spec.socket == kListenFd) {
    teller.must(fcntl(kListenFd, F_SETFD, 0) == 0, "passing the socket");
  } else {
    teller.must(dup2(spec.socket, kListenFd) >= 0, "passing the socket");
  }
}

void raiseFileLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);  // to be had or not; the default serves, too
  }
}

// ---- privileges end here

void dropCapabilities(const Teller& teller) {
  // EPERM without CAP_SETPCAP: an ordinary user has nothing to drop.
  teller.must(jailer::keepInBoundingSet(0) || errno == EPERM, "bounding set");
  teller.must(jailer::clearAmbient(), "ambient set");
}

void clearCapabilitySets(const Teller& teller) {
  teller.must(jailer::setCapabilities({}), "capset");
  teller.must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no_new_privs");
}

void becomeIdentity(const Identity& identity, const Teller& teller) {
  // First, while CAP_SETPCAP is still there.
  if (identity.dropEverything) dropCapabilities(teller);
  if (identity.uid) {
    teller.must(setgroups(0, nullptr) == 0, "setgroups");
    teller.must(setresgid(identity.gid, identity.gid, identity.gid) == 0, "setresgid");
    teller.must(setresuid(*identity.uid, *identity.uid, *identity.uid) == 0, "setresuid");
  }
  if (identity.dropEverything) clearCapabilitySets(teller);
}

// Changing the uid has cleared it, so it comes last.
void dieWithParent(const PartSpec& spec, pid_t parent, const Teller& teller) {
  if (spec.signalAtParentsDeath == 0) return;
  teller.must(prctl(PR_SET_PDEATHSIG, spec.signalAtParentsDeath) == 0, "PDEATHSIG");
  if (getppid() != parent) _exit(0);
}

[[noreturn]] void becomePart(const PartSpec& spec, int program, int tellFd, pid_t parent) {
  // Above the descriptors that have their places below.
  Teller teller(fcntl(tellFd, F_DUPFD_CLOEXEC, kListenFd + 1));
  int executable = fcntl(program, F_DUPFD_CLOEXEC, kListenFd + 1);
  teller.must(executable >= 0, "keeping the program open");
  setsid();  // a ^C at the terminal is for `up`, which ends its parts in order
  resetSignals(teller);
  umask(022);
  raiseFileLimit();
  arrangeDescriptors(spec, teller);
  becomeIdentity(spec.identity, teller);
  dieWithParent(spec, parent, teller);

  std::vector<std::string> arguments = spec.arguments;
  arguments.insert(arguments.begin(), spec.program);
  std::vector<std::string> env = environment(spec);
  env.push_back("LISTEN_PID=" + std::to_string(getpid()));
  std::vector<char*> argv = pointers(arguments), envp = pointers(env);
  syscall(SYS_execveat, executable, "", argv.data(), envp.data(), AT_EMPTY_PATH);
  // A script can't be run by a descriptor that closes on exec.
  if (errno == ENOENT) execve(spec.program.c_str(), argv.data(), envp.data());
  teller.fail("exec");
}

}  // namespace

std::string Ending::text() const {
  if (!signaled) return "exited with " + std::to_string(code);
  return "was killed by signal " + std::to_string(code) + " (" + strsignal(code) + ")";
}

Part::Part(const PartSpec& spec) {
  Fd program(check(open(spec.program.c_str(), O_PATH | O_CLOEXEC), spec.program));
  auto [told, tell] = cli::makePipe();
  pid_t parent = getpid();
  process = check(fork(), "fork");
  if (process == 0) becomePart(spec, program.get(), tell.get(), parent);
  handle = Fd(int(syscall(SYS_pidfd_open, process, 0)));
  tell = Fd();
  Failure failure;
  ssize_t count = read(told.get(), &failure, sizeof(failure));
  if (handle && count == 0) return;
  ::kill(process, SIGKILL);
  waitpid(process, nullptr, 0);
  process = -1;
  if (count != ssize_t(sizeof(failure))) check(-1, "starting " + spec.program);
  throw std::system_error(failure.error, std::system_category(),
                          spec.program + ": " + std::string(failure.step));
}

Part::~Part() {
  if (process < 0 || ending) return;
  ::kill(process, SIGKILL);
  waitpid(process, nullptr, 0);
}

void Part::signal(int number) const {
  // Unreaped until ended() says so: the pid is still its own.
  if (!ending) ::kill(process, number);
}

std::optional<Ending> Part::ended() {
  if (ending) return ending;
  siginfo_t info{};
  check(waitid(P_PID, id_t(process), &info, WEXITED | WNOHANG), "waitid");
  if (info.si_pid == process) ending = Ending{info.si_code != CLD_EXITED, info.si_status};
  return ending;
}

std::optional<Ending> Part::wait(int milliseconds) {
  pollfd ready{handle.get(), POLLIN, 0};
  while (poll(&ready, 1, milliseconds) < 0 && errno == EINTR) {
  }
  return ended();
}

}  // namespace cordon::up
