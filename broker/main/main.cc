// cordon-broker: the one privileged process. It makes and destroys sandboxes for
// the frontends, hands out streams to them, and reads the kernel's counters. It
// reads no byte that comes from a sandbox.
//
// serve() is the process in the order in which it happens; docs/operations.md
// lists the same with what each step may touch.
#include <errno.h>
#include <kj/async-io.h>
#include <kj/debug.h>
#include <signal.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "broker/hardening.h"
#include "broker/main/admission.h"
#include "broker/main/agent_port.h"
#include "broker/main/creation.h"
#include "broker/main/destruction.h"
#include "broker/main/options.h"
#include "broker/main/place.h"
#include "broker/main/process_tree.h"
#include "broker/main/record_ledger.h"
#include "broker/main/recovery.h"
#include "broker/main/snapshots.h"
#include "broker/main/state_directory.h"
#include "ipc/listen_fds.h"
#include "jailer/seccomp.h"
#include "jailer/seccomp_profile.h"
#include "runtimes/copying.h"
#include "runtimes/host/host.h"
#include "runtimes/jail/jail.h"
#include "runtimes/oci/runc.h"

namespace cordon::broker {
namespace {

constexpr auto kShutdown = 15 * kj::SECONDS;
constexpr auto kLastShutdown = 5 * kj::SECONDS;

// Every sandbox holds a handful of fds, every exec a few more.
void raiseFileLimit() {
  rlimit limit{};
  KJ_SYSCALL(getrlimit(RLIMIT_NOFILE, &limit));
  limit.rlim_cur = limit.rlim_max;
  KJ_SYSCALL(setrlimit(RLIMIT_NOFILE, &limit));
}

void captureSignals() {
  kj::UnixEventPort::captureSignal(SIGTERM);
  kj::UnixEventPort::captureSignal(SIGINT);
  kj::UnixEventPort::captureSignal(SIGCHLD);
  // A peer that has gone is an error of the write, not our end.
  KJ_REQUIRE(signal(SIGPIPE, SIG_IGN) != SIG_ERR);
}

// A fork bomb's worth of zombies in turns.
kj::Promise<void> reapAll(TurnClock& clock, Children& children) {
  auto turn = clock.turn("reap");
  size_t reaped = 0;
  auto fault = kj::runCatchingExceptions([&]() { reaped = children.reapStrays(); });
  KJ_IF_MAYBE (why, fault) spdlog::error("reaping: {}", why->getDescription().cStr());
  if (reaped < Children::kMostStraysPerCall) return kj::READY_NOW;
  return kj::evalLater([&]() { return reapAll(clock, children); });
}

kj::Promise<void> reapOnSigchld(kj::UnixEventPort& port, TurnClock& clock, Children& children) {
  return port.onSignal(SIGCHLD)
      .then([&](siginfo_t&&) { return reapAll(clock, children); })
      .then([&]() { return reapOnSigchld(port, clock, children); });
}

// Half made ones undo themselves.
bool isKeptBy(Sandbox& sandbox, const PeerScope& peer) {
  KJ_IF_MAYBE (keeper, sandbox.keeper) {
    return keeper->get() == &peer && sandbox.entry.state != rpc::SandboxState::CREATING;
  }
  return false;
}

kj::Promise<int> stopSignal(kj::UnixEventPort& port) {
  return port.onSignal(SIGTERM)
      .then([](siginfo_t&&) { return SIGTERM; })
      .exclusiveJoin(port.onSignal(SIGINT).then([](siginfo_t&&) { return SIGINT; }));
}

std::vector<kj::Own<runtimes::Runtime>> makeRuntimes(Children& children, kj::Timer& timer,
                                                     CgroupTree& cgroups, const Options& options,
                                                     const std::string& vmAgent,
                                                     runtimes::JailFilters filters,
                                                     runtimes::Copying& copying) {
  std::vector<kj::Own<runtimes::Runtime>> result;
  result.push_back(runtimes::makeJailRuntime(
      children, timer, cgroups,
      {.jailer = options.jailer, .vmAgent = vmAgent, .filters = filters, .copying = &copying}));
  result.push_back(runtimes::makeRuncRuntime(
      children, timer, cgroups,
      {.runc = options.runc,
       .createTimeout = static_cast<int>(options.runcSeconds) * kj::SECONDS,
       .copying = &copying}));
  result.push_back(runtimes::makeHostRuntime(children, {options.allowHostRuntime, vmAgent}));
  return result;
}

std::string defaultRuntime(const Options& options) {
  return options.defaultRuntime.empty() ? kDefaultRuntime : options.defaultRuntime;
}

// Once, and before any sandbox: none pays for it.
std::vector<jailer::CompiledProfile> compileProfiles() {
  std::vector<jailer::CompiledProfile> profiles;
  for (const auto& name : jailer::profileNames()) {
    profiles.push_back(jailer::compileProfile(name));
    auto& profile = profiles.back();
    spdlog::info("seccomp profile {}: {} of {} calls, {} instructions", name, profile.allowedCalls,
                 profile.knownCalls, profile.instructions);
  }
  return profiles;
}

WorkloadProfile inShort(const jailer::CompiledProfile& profile) {
  return {profile.name, profile.bpf.get(), static_cast<uint32_t>(profile.allowedCalls),
          static_cast<uint32_t>(profile.knownCalls)};
}

std::vector<WorkloadProfile> forWorkloads(const std::vector<jailer::CompiledProfile>& profiles) {
  std::vector<WorkloadProfile> result;
  for (auto& profile : profiles) result.push_back(inShort(profile));
  return result;
}

void logHardening(const Hardened& hardened) {
  spdlog::info("hardened: {} capabilities left, {} system calls refused",
               hardened.capabilities.size(), hardened.refusedCalls);
  for (auto& name : hardened.forRuntimes) spdlog::info("{} is permitted, for runtimes", name);
  for (auto& name : hardened.missing) spdlog::warn("no {} here", name);
  if (!hardened.coreLimitUsable) {
    spdlog::warn("the hard limit of core files is 0: a piped core_pattern would still run");
  }
}

kj::Own<SnapshotStore> openSnapshots(const Options& options, const StateDirectory& state) {
  std::vector<std::string> damaged;
  auto store =
      kj::heap<SnapshotStore>(options.snapshots.empty() ? state.snapshots() : options.snapshots,
                              options.snapshotCaps, &damaged);
  for (auto& what : damaged) spdlog::warn("a snapshot can't be used: {}", what);
  spdlog::info("{} snapshots", store->countOf(nullptr));
  return store;
}

class LogFaults final : public kj::TaskSet::ErrorHandler {
 public:
  void taskFailed(kj::Exception&& exception) override { fault("loop", exception); }
};

int serve(const Options& options) {
  // Before anything that could start a child or take a signal.
  captureSignals();
  auto listener = ipc::takeListenFd("broker");
  // Before anything of an earlier broker is touched: it may still be alive.
  StateDirectory state(options.state);
  spdlog::info("cordon-broker, instance {}, state {}", state.instance(), state.path());
  // So that the init of a detached runc falls to us, and its status with it.
  becomeSubreaper();
  raiseFileLimit();

  // Before the first namespace of our own: what a sandbox's are compared with.
  auto namespaces = ownNamespaces();

  // ------------------------------------------------- as root: narrow ourselves
  // Before the cgroups are looked for: their descriptors must belong to mounts
  // of our own namespace.
  Place place(options, state);
  // Before the first child, the first thread and the first byte of a peer; after
  // the mounts, which are the last thing that needs what is given up here.
  auto hardened = hardenBroker();
  logHardening(hardened);

  // ------------------------------------------------------------ what there is
  auto io = kj::setupAsyncIo();
  auto& port = io.unixEventPort;
  auto& timer = port.getTimer();
  TurnClock clock;
  Children children(port);
  auto cgroups = CgroupTree::open(options.cgroupBase, state.instance());
  spdlog::info("{}", cgroups->mode() == CgroupMode::kNone ? "no cgroups: " + cgroups->whyNone()
                                                          : cgroups->describe());
  auto ledger = openLedger(options, state, timer, clock);
  auto agentFilter = jailer::compileAgentProfile();
  auto askingAgentFilter = jailer::compileAskingAgentProfile();
  runtimes::Copying copying(children, timer, options.jailer, options.copier);
  RuntimeSet runtimes(makeRuntimes(children, timer, *cgroups, options, place.vmAgent(),
                                   {agentFilter.bpf, askingAgentFilter.bpf}, copying),
                      defaultRuntime(options));
  auto images =
      runtimes::ImageStore::open(place.images(), options.imageDirs, place.vmAgent(), timer);
  auto profiles = compileProfiles();
  auto snapshotStore = openSnapshots(options, state);

  Services services{port,
                    timer,
                    clock,
                    children,
                    *cgroups,
                    *ledger,
                    *images,
                    runtimes,
                    Ceilings::ofThisHost(),
                    forWorkloads(profiles),
                    place.sandboxes(),
                    options.allowHostRuntime};
  services.agentProfile = inShort(agentFilter);
  services.askingAgentFilter = askingAgentFilter.bpf;
  services.refusedCalls = static_cast<uint32_t>(hardened.refusedCalls);
  services.namespaces = namespaces;
  Snapshots snapshots(services, *snapshotStore);
  services.snapshots = &snapshots;
  Registry registry(options.maxSandboxes, options.maxSandboxesPerOwner);
  Destruction destruction(services, registry);
  LogFaults faults;
  kj::TaskSet tasks(faults);
  tasks.add(reapOnSigchld(port, clock, children));
  auto stop = stopSignal(port).fork();

  // ------------------------------------------- before serving: finish the past
  recover(services, registry, destruction).wait(io.waitScope);
  runtimes.probeAll().wait(io.waitScope);

  // -------------------------------------------------------------------- serve
  {
    Creation creation(services, registry, destruction);
    Admission admission(
        io, clock, kj::mv(listener),
        {options.agentsUid,
         [&](kj::Own<PeerScope> peer) {
           return makeAgentPort(services, registry, creation, destruction, kj::mv(peer));
         },
         [&](PeerScope& peer) {
           for (auto& sandbox : registry.all()) {
             if (isKeptBy(*sandbox, peer)) {
               tasks.add(destruction.destroy(*sandbox, "its frontend went")
                             .ignoreResult()
                             .attach(kj::addRef(*sandbox)));
               continue;
             }
             KJ_IF_MAYBE (execs, sandbox->execs) {
               auto fault = kj::runCatchingExceptions([&]() { (*execs)->dropPeer(peer); });
               KJ_IF_MAYBE (why, fault) faults.taskFailed(kj::mv(*why));
             }
           }
         }});
    auto accepting = admission.accept().eagerlyEvaluate(
        [&](kj::Exception&& e) { faults.taskFailed(kj::mv(e)); });
    sd_notify(0, "READY=1");
    spdlog::info("serving uid {}", options.agentsUid);

    int signo = stop.addBranch().wait(io.waitScope);
    spdlog::info("signal {}: stopping, {} sandboxes", signo, registry.size());
    sd_notify(0, "STOPPING=1");
    accepting = nullptr;
    auto destroyAll = [&](kj::Duration atMost) {
      // Those half made undo themselves; the others are destroyed meanwhile.
      auto both = kj::heapArrayBuilder<kj::Promise<void>>(2);
      both.add(creation.stop());
      both.add(destruction.destroyAll("the broker stops"));
      kj::joinPromises(both.finish()).exclusiveJoin(timer.afterDelay(atMost)).wait(io.waitScope);
    };
    destroyAll(kShutdown);
    if (registry.size() > 0) {
      spdlog::warn("{} sandboxes left: killing what we started", registry.size());
      killTree(getpid());
      destroyAll(kLastShutdown);
    }
    // What is half published would be there at the next start, and nobody knows its token.
    snapshots.settle().exclusiveJoin(timer.afterDelay(kLastShutdown)).wait(io.waitScope);
    admission.disconnectAll();
  }

  // ------------------------------------------------------- leave nothing behind
  // Programs of `host` whose agent was killed fell to us.
  killTree(getpid());
  images->removeAll();
  bool clean = registry.size() == 0;
  if (clean) cgroups->removeInstance();
  if (int error = place.remove()) spdlog::error("{}: {}", place.sandboxes(), strerror(error));
  clock.log();
  if (!clean) spdlog::error("{} sandboxes are not wholly removed", registry.size());
  return clean ? 0 : 1;
}

}  // namespace
}  // namespace cordon::broker

#ifdef __SANITIZE_ADDRESS__
// LeakSanitizer would have to trace this process, which no longer lets itself
// be traced.
extern "C" int __lsan_is_turned_off() {
  return 1;
}
#endif

int main(int argc, char** argv) {
  spdlog::set_default_logger(spdlog::stderr_logger_st("broker"));
  spdlog::set_pattern("%Y-%m-%dT%H:%M:%S.%e broker %l %v");
  try {
    auto options = cordon::broker::parseOptions(argc, argv);
    if (options.help) {
      fputs(cordon::broker::usage(), stdout);
      return 0;
    }
    return cordon::broker::serve(options);
  } catch (const kj::Exception& exception) {
    spdlog::critical("{} ({}:{})", exception.getDescription().cStr(), exception.getFile(),
                     exception.getLine());
  } catch (const std::exception& exception) {
    spdlog::critical("{}", exception.what());
  }
  return 1;
}
