#include "frontend/agents/fake_broker.h"

#include <capnp/rpc-twoparty.h>
#include <kj/debug.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <tuple>
#include <utility>

#include "ipc/fdpass.h"

// capnp's server classes are only ever destroyed as what they are (kj::Own).
#pragma GCC diagnostic ignored "-Wnon-virtual-dtor"

namespace cordon::agents {

// --- FakeGuest

std::optional<FakeGuest::Start> FakeGuest::greet() {
  send([](auto message) { message.initHello().setVersion(guest::PROTOCOL_VERSION); });
  std::optional<Start> start;
  auto text = [](capnp::Data::Reader data) {
    return std::string(reinterpret_cast<const char*>(data.begin()), data.size());
  };
  next([&](guest::HostMessage::Reader message) {
    if (!message.isStart()) return;
    auto in = message.getStart();
    start.emplace();
    start->exec = exec_ = in.getExec();
    for (auto item : in.getArgv()) start->argv.push_back(text(item));
    for (auto item : in.getEnv()) start->env.push_back(text(item));
    start->cwd = text(in.getCwd());
    start->user = in.getUser();
    start->withStdin = in.getStdin();
    start->explain = in.getExplain();
    start->fileSizeBytes = in.getFileSizeBytes();
    start->files = in.getFiles();
    start->cpuTimeMs = in.getCpuTimeMs();
    start->deadlineMs = in.getDeadlineMs();
    start->outputBytes = in.getOutputBytes();
  });
  return start;
}

bool FakeGuest::next(const std::function<void(guest::HostMessage::Reader)>& see) {
  for (;;) {
    KJ_IF_MAYBE (words, reader_.next()) {
      capnp::FlatArrayMessageReader message(*words, ipc::readerOptions(guest::MAX_START_BYTES));
      see(message.getRoot<guest::HostMessage>());
      return true;
    }
    auto space = reader_.space();
    ssize_t n = recv(fd_, space.begin(), space.size(), 0);
    if (n <= 0) return false;
    reader_.commit(static_cast<size_t>(n));
  }
}

bool FakeGuest::waitForKill() {
  bool kill = false;
  while (!kill) {
    if (!next([&](guest::HostMessage::Reader message) { kill = message.isKill(); })) return false;
  }
  return true;
}

bool FakeGuest::raw(const void* data, size_t bytes) {
  auto from = static_cast<const char*>(data);
  while (bytes > 0) {
    ssize_t n = ::send(fd_, from, bytes, MSG_NOSIGNAL);
    if (n <= 0) return false;
    from += n;
    bytes -= static_cast<size_t>(n);
  }
  return true;
}

bool FakeGuest::send(const std::function<void(guest::GuestMessage::Builder)>& fill) {
  capnp::MallocMessageBuilder message;
  fill(message.initRoot<guest::GuestMessage>());
  auto frame = ipc::frameMessage(message);
  auto bytes = frame.asBytes();
  return raw(bytes.begin(), bytes.size());
}

bool FakeGuest::startedWith(const std::vector<int>& fds) {
  capnp::MallocMessageBuilder message;
  message.initRoot<guest::GuestMessage>().setStarted(exec_);
  auto frame = ipc::frameMessage(message);
  return ipc::sendWithFds(fd_, frame.asBytes(), kj::arrayPtr(fds.data(), fds.size())) ==
         ipc::SendResult::kSent;
}

bool FakeGuest::output(unsigned stream, const std::string& bytes) {
  auto offset = end_[stream];
  end_[stream] += bytes.size();
  return outputAt(stream, offset, bytes);
}

bool FakeGuest::outputAt(unsigned stream, uint64_t offset, const std::string& bytes) {
  end_[stream] = std::max(end_[stream], offset + bytes.size());
  return send([&](auto message) {
    auto out = message.initOutput();
    out.setExec(exec_);
    out.setStream(static_cast<guest::OutputStream>(stream));
    out.setOffset(offset);
    out.setBytes({reinterpret_cast<const kj::byte*>(bytes.data()), bytes.size()});
  });
}

bool FakeGuest::credit(uint32_t bytes) {
  return send([&](auto message) {
    auto credit = message.initStdinCredit();
    credit.setExec(exec_);
    credit.setBytes(bytes);
  });
}

bool FakeGuest::exited(bool signaled, uint32_t code,
                       const std::function<void(guest::Exited::Builder)>& more) {
  return send([&](auto message) {
    auto out = message.initExited();
    out.setExec(exec_);
    out.setSignaled(signaled);
    out.setCode(code);
    out.setWallUs(1000);
    out.initStdout().setTotal(end_[0]);
    out.initStderr().setTotal(end_[1]);
    if (more) more(out);
  });
}

bool FakeGuest::failed(guest::FailStep step, uint32_t error) {
  return send([&](auto message) {
    auto out = message.initFailed();
    out.setExec(exec_);
    out.setStep(step);
    out.setErrno(error);
  });
}

// --- FakeBroker

struct FakeBroker::Impl final : private kj::TaskSet::ErrorHandler {
  struct Entry {
    uint32_t owner;
    std::string token, runtime;
    uint64_t wallMs, cpuTimeMs, outputBytes;
    uint32_t execs = 0, running = 0;
    bool gone = false;
  };

  explicit Impl(FakeBroker& b) : broker(b), tasks(*static_cast<kj::TaskSet::ErrorHandler*>(this)) {}
  ~Impl() noexcept(false) {}

  void taskFailed(kj::Exception&&) override {}  // a frontend that left

  void listen(kj::AutoCloseFd fd);
  kj::Promise<void> acceptLoop();
  void info(const std::string& name, const Entry& entry, rpc::SandboxInfo::Builder out);
  void limits(const Entry& entry, rpc::Limits::Builder limits);

  FakeBroker& broker;
  kj::Own<kj::ConnectionReceiver> receiver;
  std::map<std::string, std::shared_ptr<Entry>> sandboxes;
  kj::TaskSet tasks;
};

namespace {

void refuse(rpc::Status::Builder status, rpc::Code code, rpc::Reason reason,
            const std::string& detail = "") {
  status.setCode(code);
  status.setReason(reason);
  status.setDetail(detail);
}

struct FakeStream final : public rpc::Stream::Server {
  explicit FakeStream(kj::AutoCloseFd f) : fd(kj::mv(f)) {}
  ~FakeStream() noexcept(false) {}
  kj::Maybe<int> getFd() override { return fd.get(); }
  kj::AutoCloseFd fd;
};

}  // namespace

struct FakeSandbox final : public rpc::Sandbox::Server {
  using Entry = FakeBroker::Impl::Entry;
  FakeSandbox(FakeBroker::Impl& i, std::string n, std::shared_ptr<Entry> e,
              std::function<void(kj::AutoCloseFd)> g)
      : impl(i), name(std::move(n)), entry(std::move(e)), runGuest(std::move(g)) {}
  ~FakeSandbox() noexcept(false) {}

  kj::Promise<void> inspect(InspectContext context) override {
    ++impl.broker.inspected;
    impl.info(name, *entry, context.getResults().initInfo());
    return kj::READY_NOW;
  }

  kj::Promise<void> connect(ConnectContext context) override {
    if (entry->gone) {
      refuse(context.getResults().initStatus(), rpc::Code::FAILED_PRECONDITION,
             rpc::Reason::SANDBOX_GONE);
      return kj::READY_NOW;
    }
    context.getResults().setStream(stream());
    return kj::READY_NOW;
  }

  rpc::Stream::Client stream() {
    auto pair = ipc::socketPair(SOCK_STREAM);
    runGuest(kj::mv(pair.b));
    return kj::heap<FakeStream>(kj::mv(pair.a));
  }

  void counters(capnp::List<rpc::Counter>::Builder out, bool after) {
    for (kj::uint i = 0; i < out.size(); ++i) {
      const auto& counted = impl.broker.counters_[i];
      out[i].setKind(counted.kind);
      out[i].setScope(rpc::Scope::EXEC);
      out[i].setValue(after ? counted.after : counted.before);
      out[i].setFile(counted.file);
    }
  }

  kj::Promise<void> beginExec(BeginExecContext context) override {
    begin(context.getResults(), context.getParams().getLimits().getCpuTimeMs());
    return kj::READY_NOW;
  }

  template <typename Results>
  void begin(Results results, uint64_t cpuTimeMs) {
    ++impl.broker.begun;
    if (entry->gone) {
      return refuse(results.initStatus(), rpc::Code::FAILED_PRECONDITION,
                    rpc::Reason::SANDBOX_GONE);
    }
    if (cpuTimeMs > entry->cpuTimeMs) {
      return refuse(results.initStatus(), rpc::Code::INVALID_ARGUMENT,
                    rpc::Reason::EXEC_LIMIT_TOO_WIDE);
    }
    results.setStream(stream());
    std::lock_guard lock(impl.broker.mutex_);
    results.setExec(++entry->execs);
    ++entry->running;
    counters(results.initBefore(static_cast<kj::uint>(impl.broker.counters_.size())), false);
  }

  kj::Promise<void> endExec(EndExecContext context) override {
    ++impl.broker.ended;
    impl.broker.streamsLost += context.getParams().getStreamLost();
    if (impl.broker.endHangs) return kj::NEVER_DONE;
    --entry->running;
    std::lock_guard lock(impl.broker.mutex_);
    counters(context.getResults().initAfter(static_cast<kj::uint>(impl.broker.counters_.size())),
             true);
    return kj::READY_NOW;
  }

  kj::Promise<void> killExec(KillExecContext) override {
    ++impl.broker.killed;
    return kj::READY_NOW;
  }

  kj::Promise<void> destroy(DestroyContext context) override {
    ++impl.broker.destroyed;
    entry->gone = true;
    impl.sandboxes.erase(name);
    auto receipt = context.getResults().initReceipt();
    receipt.setComplete(true);
    receipt.initRemoved(1)[0].setKind("cgroup");
    return kj::READY_NOW;
  }

  FakeBroker::Impl& impl;
  std::string name;
  std::shared_ptr<Entry> entry;
  std::function<void(kj::AutoCloseFd)> runGuest;
};

struct FakePort final : public rpc::AgentPort::Server {
  FakePort(FakeBroker::Impl& i, std::function<void(kj::AutoCloseFd)> g)
      : impl(i), runGuest(std::move(g)) {}
  ~FakePort() noexcept(false) {}

  rpc::Sandbox::Client sandbox(const std::string& name,
                               std::shared_ptr<FakeBroker::Impl::Entry> entry) {
    return kj::heap<FakeSandbox>(impl, name, std::move(entry), runGuest);
  }

  kj::Promise<void> acquire(AcquireContext context) override {
    auto results = context.getResults();
    {
      std::lock_guard lock(impl.broker.mutex_);
      if (auto refusal = std::exchange(impl.broker.refusal_, std::nullopt)) {
        auto [code, reason, detail] = *refusal;
        refuse(results.initStatus(), code, reason, detail);
        return kj::READY_NOW;
      }
    }
    auto params = context.getParams();
    const auto& defaults = impl.broker.defaults;
    auto limits = params.getSpec().getLimits();
    auto or_ = [](uint64_t asked, uint64_t otherwise) { return asked != 0 ? asked : otherwise; };
    auto entry = std::make_shared<FakeBroker::Impl::Entry>();
    entry->owner = params.getOwner().getUid();
    impl.broker.lastAcquireUid = entry->owner;
    int number = ++impl.broker.acquired;
    char name[32], token[40];
    // Digits that the alphabet of names has.
    snprintf(name, sizeof name, "sb-aaaaaaa%c%c%c", 'a' + number / 676 % 26, 'a' + number / 26 % 26,
             'a' + number % 26);
    snprintf(token, sizeof token, "%032x", number);
    entry->token = token;
    entry->runtime = params.getSpec().getRuntime();
    entry->wallMs = or_(limits.getWallMs(), defaults.wallMs);
    entry->cpuTimeMs = or_(limits.getCpuTimeMs(), defaults.cpuTimeMs);
    entry->outputBytes = or_(limits.getOutputBytes(), defaults.outputBytes);
    impl.sandboxes[name] = entry;
    results.setSandbox(sandbox(name, entry));
    results.setName(name);
    results.setToken(token);
    impl.info(name, *entry, results.initInfo());
    return kj::READY_NOW;
  }

  kj::Promise<void> attach(AttachContext context) override {
    auto params = context.getParams();
    auto found = impl.sandboxes.find(params.getName());
    if (found == impl.sandboxes.end() || found->second->owner != params.getOwner().getUid() ||
        params.getToken() != found->second->token.c_str()) {
      refuse(context.getResults().initStatus(), rpc::Code::NOT_FOUND, rpc::Reason::NO_SUCH_SANDBOX,
             "no such sandbox");
      return kj::READY_NOW;
    }
    context.getResults().setSandbox(sandbox(found->first, found->second));
    return kj::READY_NOW;
  }

  kj::Promise<void> beginExec(BeginExecContext context) override {
    auto params = context.getParams();
    auto results = context.getResults();
    auto found = impl.sandboxes.find(params.getName());
    if (found == impl.sandboxes.end() || found->second->owner != params.getOwner().getUid() ||
        params.getToken() != found->second->token.c_str()) {
      refuse(results.initStatus(), rpc::Code::NOT_FOUND, rpc::Reason::NO_SUCH_SANDBOX,
             "no such sandbox");
      return kj::READY_NOW;
    }
    auto made = kj::heap<FakeSandbox>(impl, found->first, found->second, runGuest);
    made->begin(results, params.getExec().getCpuTimeMs());
    results.setRuntime(found->second->runtime);
    results.setSeccomp("default");
    results.setAsks(true);
    impl.limits(*found->second, results.initLimits());
    results.setSandbox(kj::mv(made));
    return kj::READY_NOW;
  }

  kj::Promise<void> list(ListContext context) override {
    auto params = context.getParams();
    auto uid = params.getOwner().getUid();
    std::vector<std::string> mine;
    for (auto& [name, entry] : impl.sandboxes) {
      if (entry->owner == uid && name > std::string(params.getAfter())) mine.push_back(name);
    }
    context.getResults().setMore(mine.size() > params.getMost());
    mine.resize(kj::min(mine.size(), size_t{params.getMost()}));
    auto out = context.getResults().initSandboxes(static_cast<kj::uint>(mine.size()));
    for (kj::uint i = 0; i < mine.size(); ++i) {
      impl.info(mine[i], *impl.sandboxes[mine[i]], out[i]);
    }
    return kj::READY_NOW;
  }

  kj::Promise<void> runtimes(RuntimesContext context) override {
    auto out = context.getResults().initRuntimes(1);
    out[0].setName("fake");
    out[0].setAvailable(true);
    out[0].setIsDefault(true);
    return kj::READY_NOW;
  }

  FakeBroker::Impl& impl;
  std::function<void(kj::AutoCloseFd)> runGuest;
};

void FakeBroker::Impl::info(const std::string& name, const Entry& entry,
                            rpc::SandboxInfo::Builder out) {
  out.setName(name);
  out.setRuntime(entry.runtime.empty() ? "fake" : entry.runtime);
  out.setImage("none");
  out.initSeccomp().setName("default");
  out.initOwner().setUid(entry.owner);
  out.setState(rpc::SandboxState::READY);
  out.setExecsTotal(entry.execs);
  out.setExecsRunning(entry.running);
  this->limits(entry, out.initLimits());
}

void FakeBroker::Impl::limits(const Entry& entry, rpc::Limits::Builder limits) {
  limits.setMemoryBytes(broker.defaults.memoryBytes);
  limits.setPids(static_cast<uint32_t>(broker.defaults.pids));
  limits.setWallMs(entry.wallMs);
  limits.setCpuTimeMs(entry.cpuTimeMs);
  limits.setOutputBytes(entry.outputBytes);
  limits.setFileSizeBytes(broker.defaults.fileSizeBytes);
  limits.setFiles(static_cast<uint32_t>(broker.defaults.files));
}

void FakeBroker::Impl::listen(kj::AutoCloseFd fd) {
  receiver = broker.loop_.io().lowLevelProvider->wrapListenSocketFd(
      kj::mv(fd), kj::LowLevelAsyncIoProvider::ALREADY_CLOEXEC);
  tasks.add(acceptLoop());
}

kj::Promise<void> FakeBroker::Impl::acceptLoop() {
  return receiver->accept().then([this](kj::Own<kj::AsyncIoStream> plain) {
    struct Connection {
      Connection(kj::Own<kj::AsyncCapabilityStream> s, rpc::AgentPort::Client port)
          : stream(kj::mv(s)),
            network(*stream, 1, capnp::rpc::twoparty::Side::SERVER),
            system(capnp::makeRpcServer(network, kj::mv(port))) {}
      kj::Own<kj::AsyncCapabilityStream> stream;
      capnp::TwoPartyVatNetwork network;
      capnp::RpcSystem<capnp::rpc::twoparty::VatId> system;
    };
    auto runGuest = [this](kj::AutoCloseFd fd) {
      std::lock_guard lock(broker.mutex_);
      int raw = fd.release();
      broker.guestFds_.push_back(raw);
      broker.guests_.emplace_back([raw, script = broker.script_] {
        FakeGuest guest(raw);
        if (script) script(guest);
        shutdown(raw, SHUT_RDWR);  // closed when the broker goes
      });
    };
    auto connection =
        kj::heap<Connection>(plain.downcast<kj::AsyncCapabilityStream>(),
                             rpc::AgentPort::Client(kj::heap<FakePort>(*this, runGuest)));
    auto gone = connection->network.onDisconnect();
    tasks.add(gone.attach(kj::mv(connection)));
    return acceptLoop();
  });
}

FakeBroker::FakeBroker(const std::string& path) : path_(path), loop_("fake-broker") {
  unlink(path.c_str());
  int raw;
  KJ_SYSCALL(raw = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  kj::AutoCloseFd fd(raw);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  KJ_REQUIRE(path.size() < sizeof address.sun_path);
  memcpy(address.sun_path, path.data(), path.size());
  KJ_SYSCALL(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), path);
  KJ_SYSCALL(::listen(fd, 16));
  KJ_SYSCALL(chmod(path.c_str(), 0666));
  loop_.call([&] {
    impl_ = std::make_unique<Impl>(*this);
    impl_->listen(kj::mv(fd));
  });
}

FakeBroker::~FakeBroker() {
  loop_.call([&] { impl_ = nullptr; });
  for (int fd : guestFds_) shutdown(fd, SHUT_RDWR);
  for (auto& guest : guests_) guest.join();
  for (int fd : guestFds_) close(fd);
  unlink(path_.c_str());
}

void FakeBroker::setScript(Script script) {
  std::lock_guard lock(mutex_);
  script_ = std::move(script);
}

void FakeBroker::setCounters(std::vector<Counted> counters) {
  std::lock_guard lock(mutex_);
  counters_ = std::move(counters);
}

void FakeBroker::refuseAcquire(rpc::Code code, rpc::Reason reason, const std::string& detail) {
  std::lock_guard lock(mutex_);
  refusal_.emplace(code, reason, detail);
}

}  // namespace cordon::agents
