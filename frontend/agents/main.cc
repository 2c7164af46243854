// cordon-agents: the agents' gRPC frontend. Reads hostile bytes from clients and
// from sandboxes, and so holds nothing: no capability, no privilege, a uid of
// its own. The socket comes by activation (LISTEN_FDS, "agents"), the broker is
// a unix socket.
//
// Threads: main accepts (Acceptor); "agents-loop" owns everything that touches
// the broker and the sandboxes (LoopThread); gRPC has its own.
#include <getopt.h>
#include <grpc/support/log.h>
#include <kj/debug.h>
#include <malloc.h>
#include <signal.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include <atomic>
#include <charconv>
#include <chrono>
#include <future>
#include <optional>

#include "frontend/agents/acceptor.h"
#include "frontend/agents/backend.h"
#include "frontend/agents/confine.h"
#include "frontend/agents/exec_calls.h"
#include "frontend/agents/servers.h"
#include "frontend/link/loop_thread.h"
#include "ipc/listen_fds.h"

namespace cordon::agents {
namespace {

constexpr auto kBrokerWait = std::chrono::seconds(5);
// Calls get this long to end by themselves once they were cancelled, and the
// process this long in all.
constexpr auto kDrain = std::chrono::milliseconds(500);
constexpr unsigned kLongestEndSeconds = 20;
// Buffers of a stream go back and forth between malloc and gRPC: keep them off
// mmap, whose pages would be faulted in again each time.
constexpr int kMmapThreshold = 8 * 1024 * 1024;

struct Options {
  std::string broker = "/run/cordon/broker.sock";
  ExecCalls::Limits calls;
  ServerLimits limits;
};

const char kUsage[] =
    R"(Usage: cordon-agents [OPTION]...
Serves cordon's gRPC API for agents on the socket named "agents" that it was
started with (LISTEN_FDS).

  --broker PATH                    the broker's socket (/run/cordon/broker.sock)
  --one-trust-zone                 say so to clients: broker and frontends share
                                   one uid, and the host runtime may be offered
  --max-connections N              open connections in all (256)
  --max-connections-per-user N     and of one uid (64)
  --max-users N                    uids that are connected at once (64)
  --user-idle-seconds N            a uid without a connection counts as connected
                                   for so long (60)
  --max-calls N                    Exec and Run calls at once in all (1024)
  --max-calls-per-user N           and of one uid (256)
  --max-calls-per-connection N     calls at once on one connection (128)
  --help

On SIGTERM it cancels what is under way, waits for it and exits 0; with 1 when
that took longer than 20 s.
)";

std::optional<size_t> count(const char* text) {
  size_t value = 0;
  auto end = text + strlen(text);
  auto [at, error] = std::from_chars(text, end, value);
  if (error != std::errc() || at != end || value == 0 || value > 1000000) return std::nullopt;
  return value;
}

// Exits on --help and on what it does not understand.
Options parse(int argc, char** argv) {
  enum {
    kBroker,
    kOneZone,
    kConnections,
    kPerUser,
    kUsers,
    kUserIdle,
    kCalls,
    kUserCalls,
    kPerConnection,
    kHelp
  };
  const option table[] = {
      {"broker", required_argument, nullptr, kBroker},
      {"one-trust-zone", no_argument, nullptr, kOneZone},
      {"max-connections", required_argument, nullptr, kConnections},
      {"max-connections-per-user", required_argument, nullptr, kPerUser},
      {"max-users", required_argument, nullptr, kUsers},
      {"user-idle-seconds", required_argument, nullptr, kUserIdle},
      {"max-calls", required_argument, nullptr, kCalls},
      {"max-calls-per-user", required_argument, nullptr, kUserCalls},
      {"max-calls-per-connection", required_argument, nullptr, kPerConnection},
      {"help", no_argument, nullptr, kHelp},
      {},
  };
  Options options;
  auto usage = [](FILE* to, int status) {
    fputs(kUsage, to);
    exit(status);
  };
  auto number = [&](size_t& to) {
    auto value = count(optarg);
    if (!value) {
      fprintf(stderr, "cordon-agents: %s is not a number from 1 to 1000000\n", optarg);
      exit(2);
    }
    to = *value;
  };
  size_t perConnection = static_cast<size_t>(options.limits.callsPerConnection);
  size_t idleSeconds = static_cast<size_t>(options.limits.idle.count());
  for (int c; (c = getopt_long(argc, argv, "", table, nullptr)) != -1;) {
    switch (c) {
      case kBroker:
        options.broker = optarg;
        break;
      case kOneZone:
        options.limits.oneTrustZone = true;
        break;
      case kConnections:
        number(options.limits.connections);
        break;
      case kPerUser:
        number(options.limits.connectionsPerUser);
        break;
      case kUsers:
        number(options.limits.users);
        break;
      case kUserIdle:
        number(idleSeconds);
        break;
      case kUserCalls:
        number(options.calls.callsPerUser);
        break;
      case kCalls:
        number(options.calls.calls);
        break;
      case kPerConnection:
        number(perConnection);
        break;
      case kHelp:
        usage(stdout, 0);
        break;
      default:
        usage(stderr, 2);
    }
  }
  if (optind != argc) usage(stderr, 2);
  options.limits.callsPerConnection = static_cast<int>(perConnection);
  options.limits.idle = std::chrono::seconds(idleSeconds);
  return options;
}

// SIGTERM and SIGINT as a descriptor; blocked in every thread to come.
kj::AutoCloseFd takeSignals() {
  signal(SIGPIPE, SIG_IGN);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  KJ_SYSCALL(sigprocmask(SIG_BLOCK, &set, nullptr), "sigprocmask");
  int fd;
  KJ_SYSCALL(fd = signalfd(-1, &set, SFD_CLOEXEC), "signalfd");
  return kj::AutoCloseFd(fd);
}

// A little patience, so that whoever saw READY=1 finds the broker there.
void waitForBroker(Backend& backend) {
  auto up = std::make_shared<std::promise<void>>();
  auto waited = up->get_future();
  backend.loop.post([&backend, up] {
    KJ_IF_MAYBE (link, backend.link) {
      backend.add((*link)->whenFirstUp().then([up] { up->set_value(); }));
    }
  });
  if (waited.wait_for(kBrokerWait) != std::future_status::ready) {
    backend.log->warn("serving without a broker for now");
  }
}

// gRPC writes a line for much that a client gets wrong: at most a few a second,
// so that the log is not a client's to fill.
void quietGrpc() {
  gpr_set_log_function([](gpr_log_func_args* args) {
    constexpr int kPerSecond = 5;
    static std::atomic<int64_t> second{0};
    static std::atomic<int> lines{0};
    auto now = std::chrono::duration_cast<std::chrono::seconds>(
                   std::chrono::steady_clock::now().time_since_epoch())
                   .count();
    if (second.exchange(now) != now) lines = 0;
    if (++lines > kPerSecond) return;
    fprintf(stderr, "cordon-agents: gRPC: %s:%d: %s\n", args->file, args->line, args->message);
  });
}

int run(int argc, char** argv) {
  auto options = parse(argc, argv);
  quietGrpc();
  auto log = spdlog::stderr_logger_mt("cordon-agents");
  log->set_pattern("%Y-%m-%dT%H:%M:%S.%e %n[%P] %l: %v");
  mallopt(M_MMAP_THRESHOLD, kMmapThreshold);
  mallopt(M_TRIM_THRESHOLD, 2 * kMmapThreshold);

  // First: it closes whatever else was inherited.
  auto listener = ipc::takeListenFd("agents");
  auto signals = takeSignals();
  auto profiles = compileProfiles();
  // ---- Nothing of a client or a sandbox was read yet; from here on there is
  // no privilege to be won. Before the first thread, since it is per thread.
  size_t left = confine();
  log->info("confined: no capability, {} system calls pass", left);

  link::LoopThread loop("agents-loop");
  Backend backend(loop, log, std::move(profiles));
  loop.call([&] { backend.start(options.broker); });
  {
    ExecCalls calls(backend, options.calls);
    Servers servers(backend, calls, options.limits);
    Acceptor acceptor(servers, kj::mv(listener), kj::mv(signals), log);
    waitForBroker(backend);
    sd_notify(0, "READY=1");
    int signo = acceptor.run();
    log->info("{}: ending", strsignal(signo));
    sd_notify(0, "STOPPING=1");

    // A broker that does not answer must not keep us.
    signal(SIGALRM, [](int) {
      static const char kLine[] = "cordon-agents: ended with calls still under way\n";
      (void)!write(STDERR_FILENO, kLine, sizeof kLine - 1);
      _exit(1);
    });
    alarm(kLongestEndSeconds);
    calls.shutdown();
    servers.shutdown(kDrain);
    // Twice: the last call posts its removal after gRPC has let go of it.
    loop.call([] {});
    loop.call([] {});
  }
  loop.call([&] { backend.stop(); });
  return 0;
}

}  // namespace
}  // namespace cordon::agents

#ifdef __SANITIZE_ADDRESS__
// LeakSanitizer would have to trace this process, which no longer lets itself
// be traced.
extern "C" int __lsan_is_turned_off() {
  return 1;
}
#endif

int main(int argc, char** argv) {
  int status = 1;
  auto failure = kj::runCatchingExceptions([&] { status = cordon::agents::run(argc, argv); });
  KJ_IF_MAYBE (exception, failure) {
    fprintf(stderr, "cordon-agents: %s\n", exception->getDescription().cStr());
  }
  return status;
}
