#include "frontend/cli/up/supervisor.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/stat.h>

#include <chrono>
#include <cstdio>
#include <limits>
#include <memory>
#include <optional>

#include "frontend/cli/failure.h"
#include "frontend/cli/up/notify.h"
#include "frontend/cli/up/part.h"
#include "frontend/cli/up/state_directory.h"

namespace cordon::up {
namespace {

using cli::UsageError;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kReadyWithin{30'000};
constexpr milliseconds kLeastBackoff{100}, kMostBackoff{5'000};
constexpr milliseconds kCalm{10'000};  // ran so long: the next backoff starts anew
// The frontend drains its calls, the broker destroys every sandbox.
constexpr int kAgentsStopMs = 25'000, kBrokerStopMs = 120'000;
constexpr int kEarlierBrokerSeconds = 60;

void log(const std::string& text) {
  fprintf(stderr, "cordon up: %s\n", text.c_str());
}

// ---- who we are, and where things lie

struct Mode {
  bool separated = false;  // frontends under uids of their own
};

Mode modeFor(const UpOptions& options) {
  if (geteuid() != 0 && !options.allowHostRuntime) {
    throw UsageError(
        "without root there are no sandboxes: only the `host` runtime can run here, and it "
        "isolates "
        "nothing. Run as root, or add --allow-host-runtime for a private instance that runs "
        "programs as yourself");
  }
  return {geteuid() == 0 && !options.allowHostRuntime};
}

std::string directoryOfThisProgram() {
  char self[4096];
  ssize_t length = check(readlink("/proc/self/exe", self, sizeof(self) - 1), "/proc/self/exe");
  std::string path(self, size_t(length));
  return path.substr(0, path.rfind('/'));
}

std::string programPath(const UpOptions& options, const char* name) {
  std::vector<std::string> places;
  if (!options.libexec.empty()) {
    places = {options.libexec};
  } else {
    std::string here = directoryOfThisProgram();
    places = {here.substr(0, here.rfind('/')) + "/libexec/cordon", here};
  }
  for (const std::string& place : places) {
    std::string path = place + "/" + name;
    if (access(path.c_str(), X_OK) == 0) return path;
  }
  throw UsageError(std::string(name) + " is not in " + places.front() +
                   "; say where it is with --libexec DIR");
}

// ---- the two parts

PartSpec brokerSpec(const UpOptions& options, const Mode& mode, const std::string& state) {
  PartSpec spec;
  spec.name = "broker";
  spec.program = programPath(options, "cordon-broker");
  spec.arguments = {"--state", state + "/broker"};
  auto add = [&](const char* flag, const std::string& value) {
    if (!value.empty()) spec.arguments.insert(spec.arguments.end(), {flag, value});
  };
  if (mode.separated) add("--agents-uid", std::to_string(options.agentsUid));
  if (!mode.separated) add("--agents-uid", std::to_string(geteuid()));
  if (options.allowHostRuntime) spec.arguments.push_back("--allow-host-runtime");
  for (const std::string& directory : options.images) add("--images", directory);
  add("--default-runtime", options.defaultRuntime);
  add("--runc", options.runc);
  add("--vm-agent", options.vmAgent);
  add("--id-span", options.idSpan);
  add("--id-registry", options.idRegistry);
  add("--cgroup-base", options.cgroupBase);
  add("--max-sandboxes", options.maxSandboxes);
  add("--max-per-owner", options.maxPerOwner);
  add("--snapshots", options.snapshots);
  add("--max-snapshots", options.maxSnapshots);
  add("--max-snapshots-per-owner", options.maxSnapshotsPerOwner);
  add("--snapshot-bytes", options.snapshotBytes);
  add("--snapshot-bytes-per-owner", options.snapshotBytesPerOwner);
  spec.socketName = "broker";
  // It destroys its sandboxes, then ends.
  spec.signalAtParentsDeath = SIGTERM;
  return spec;
}

PartSpec agentsSpec(const UpOptions& options, const Mode& mode, const std::string& state) {
  PartSpec spec;
  spec.name = "agents";
  spec.program = programPath(options, "cordon-agents");
  spec.arguments = {"--broker", state + "/broker.sock"};
  if (!mode.separated) spec.arguments.push_back("--one-trust-zone");
  if (mode.separated) {
    spec.identity.uid = options.agentsUid;
    spec.identity.gid = options.agentsUid;
  }
  spec.identity.dropEverything = true;
  spec.socketName = "agents";
  spec.signalAtParentsDeath = SIGKILL;
  return spec;
}

// A part through its lives.
struct Supervised {
  PartSpec spec;
  std::unique_ptr<Part> part;
  bool ready = false;
  Clock::time_point startedAt{};
  milliseconds backoff = kLeastBackoff;
  std::optional<Clock::time_point> startAgainAt;

  void start() {
    startAgainAt.reset();
    ready = false;
    startedAt = Clock::now();
    part = std::make_unique<Part>(spec);
  }
  // After a death or a failed start.
  void startLater() {
    part.reset();
    if (Clock::now() - startedAt > kCalm) backoff = kLeastBackoff;
    startAgainAt = Clock::now() + backoff;
    backoff = std::min(backoff * 2, kMostBackoff);
  }
};

class Supervisor {
 public:
  Supervisor(const UpOptions& options, const Mode& how);
  int run();

 private:
  void makeSockets(const UpOptions& options);
  // False: SIGTERM came meanwhile.
  bool startAndAwait(Supervised& supervised);
  void wait(milliseconds most);
  void takeNotifications();
  void reviveDead();
  milliseconds untilNextStart() const;
  int stop();
  bool stopPart(Supervised& supervised, int milliseconds);

  Mode mode;
  StateDirectory state;
  Fd signals, brokerSocket, agentsSocket, notifications;
  Supervised broker, agents;
  bool stopping = false;
};

sigset_t stopSignals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGHUP);
  return set;
}

Supervisor::Supervisor(const UpOptions& options, const Mode& how)
    : mode(how), state(options.state, how.separated) {
  sigset_t set = stopSignals();
  check(sigprocmask(SIG_BLOCK, &set, nullptr), "sigprocmask");
  signals = Fd(check(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK), "signalfd"));
  signal(SIGPIPE, SIG_IGN);
  makeSockets(options);
  broker.spec = brokerSpec(options, mode, state.path());
  agents.spec = agentsSpec(options, mode, state.path());
  broker.spec.socket = brokerSocket.get();
  agents.spec.socket = agentsSocket.get();
  broker.spec.notifySocket = agents.spec.notifySocket = state.path() + "/notify.sock";
}

void Supervisor::makeSockets(const UpOptions& options) {
  gid_t services = mode.separated ? options.agentsUid : gid_t(-1);
  mode_t inner = mode.separated ? 0660 : 0600;
  notifications = state.datagrams("notify.sock", inner, services);
  brokerSocket = state.listen("broker.sock", inner, services);
  // One trust zone is one user's: never anybody else's socket.
  agentsSocket = mode.separated
                     ? state.listen("agents.sock", options.agentsMode, options.agentsGroup)
                     : state.listen("agents.sock", 0600, gid_t(-1));
}

// Sleeps until something happens, and takes note of it.
void Supervisor::wait(milliseconds most) {
  pollfd watched[4] = {{signals.get(), POLLIN, 0},
                       {notifications.get(), POLLIN, 0},
                       {broker.part ? broker.part->pidfd() : -1, POLLIN, 0},
                       {agents.part ? agents.part->pidfd() : -1, POLLIN, 0}};
  int timeout = most == milliseconds::max() ? -1 : int(std::max<int64_t>(most.count(), 0));
  if (poll(watched, 4, timeout) < 0 && errno != EINTR) check(-1, "poll");
  signalfd_siginfo info{};
  while (read(signals.get(), &info, sizeof(info)) == ssize_t(sizeof(info))) stopping = true;
  takeNotifications();
}

void Supervisor::takeNotifications() {
  while (auto notification = receive(notifications.get())) {
    for (Supervised* each : {&broker, &agents}) {
      if (each->part && each->part->pid() == notification->sender && notification->ready()) {
        each->ready = true;
      }
    }
  }
}

// At the start a part that dies is not tried again: what stops it is most
// likely in its arguments, and it has said so.
bool Supervisor::startAndAwait(Supervised& supervised) {
  supervised.start();
  auto deadline = Clock::now() + kReadyWithin;
  while (!supervised.ready && !stopping) {
    auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) {
      throw std::runtime_error("the " + supervised.spec.name + " was not ready within 30 s");
    }
    wait(left);
    if (auto ending = supervised.part->ended()) {
      throw std::runtime_error("the " + supervised.spec.name + " " + ending->text() +
                               " before it was ready");
    }
  }
  return !stopping;
}

void Supervisor::reviveDead() {
  for (Supervised* each : {&broker, &agents}) {
    if (each->part) {
      if (auto ending = each->part->ended()) {
        log("the " + each->spec.name + " " + ending->text() + "; starting it again");
        each->startLater();
      }
    }
    if (!each->startAgainAt || Clock::now() < *each->startAgainAt) continue;
    try {
      each->start();
    } catch (const std::system_error& error) {
      log(std::string("can't start it again: ") + error.what());
      each->startLater();
    }
  }
}

milliseconds Supervisor::untilNextStart() const {
  auto soonest = milliseconds::max();
  for (const Supervised* each : {&broker, &agents}) {
    if (!each->startAgainAt) continue;
    soonest =
        std::min(soonest, std::chrono::ceil<milliseconds>(*each->startAgainAt - Clock::now()));
  }
  return soonest;
}

// True when it ended well, or was not running.
bool Supervisor::stopPart(Supervised& supervised, int most) {
  supervised.startAgainAt.reset();
  if (!supervised.part) return true;
  supervised.part->signal(SIGTERM);
  auto ending = supervised.part->wait(most);
  if (!ending) {
    log("the " + supervised.spec.name + " did not end within " + std::to_string(most / 1000) +
        " s of SIGTERM: killed");
    supervised.part.reset();
    return false;
  }
  if (!ending->clean()) log("the " + supervised.spec.name + " " + ending->text());
  bool clean = ending->clean();
  supervised.part.reset();
  return clean;
}

int Supervisor::stop() {
  // First who asks, then who answers: no call meets half a service.
  stopPart(agents, kAgentsStopMs);
  bool clean = stopPart(broker, kBrokerStopMs);
  for (const char* name : {"agents.sock", "broker.sock", "notify.sock"}) state.remove(name);
  if (clean) return 0;
  log("the broker did not end cleanly: something of its sandboxes may be left; "
      "`cordon up --state " +
      state.path() + "` destroys it");
  return 1;
}

int Supervisor::run() {
  if (!mode.separated) {
    log("ONE TRUST ZONE: broker, frontend and programs of the `host` runtime all run in one trust "
        "zone, as uid " +
        std::to_string(geteuid()) + "; nothing separates them");
  }
  if (!state.waitForEarlierBroker(kEarlierBrokerSeconds)) {
    throw UsageError("an earlier broker still holds " + state.path());
  }
  try {
    if (startAndAwait(broker) && startAndAwait(agents)) {
      log("serving; CORDON_AGENTS=unix:" + state.path() + "/agents.sock");
      printf("ready\n");
      fflush(stdout);
    }
    while (!stopping) {
      reviveDead();
      wait(untilNextStart());
    }
  } catch (const std::exception& error) {
    log(error.what());
    stop();
    return cli::kOwnError;
  }
  return stop();
}

}  // namespace

int serve(const UpOptions& options) {
  return Supervisor(options, modeFor(options)).run();
}

}  // namespace cordon::up
