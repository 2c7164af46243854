// For tests: a cordon-broker of one's own, its clients, and what is left of it.
//
// Programs are found through CORDON_BROKER and CORDON_VM_AGENT (set by Meson).
#pragma once
#include <capnp/rpc-twoparty.h>
#include <kj/async-io.h>
#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ipc/broker.capnp.h"
#include "ipc/framing.h"
#include "ipc/guest.capnp.h"

namespace cordon::broker::testing {

// Polls until `condition` holds; false after `seconds`.
bool eventually(const std::function<bool()>& condition, double seconds = 20);

// Direct children that are no zombies.
std::vector<pid_t> childrenOf(pid_t parent);

class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// The listening socket is the test's, so it survives the broker, as with
// `cordon up`.
class BrokerProcess {
 public:
  explicit BrokerProcess(std::vector<std::string> options = {});
  ~BrokerProcess();
  BrokerProcess(const BrokerProcess&) = delete;
  BrokerProcess& operator=(const BrokerProcess&) = delete;

  // Starts it and waits for READY=1; false when it ended instead.
  bool start();
  // Starts it without waiting.
  void launch();
  bool awaitReady(double seconds = 30);
  void signal(int signo);
  // Waits for its end: the exit status, or 128 + signal; -1 when it runs on.
  int wait(double seconds = 30);
  bool running();
  pid_t pid() const { return pid_; }

  const std::string& socketPath() const { return socket_; }
  std::string state() const { return dir_.path() + "/broker"; }
  std::string directory() const { return dir_.path(); }
  std::string log() const;
  std::string instance() const;
  void setOptions(std::vector<std::string> options) { options_ = std::move(options); }

  // Everything on this machine that carries this instance's name, with what it
  // is: cgroups, directories, records, id claims, processes. Sorted.
  std::vector<std::string> remains() const;

 private:
  TempDir dir_;
  std::string socket_;
  std::vector<std::string> options_;
  int listener_ = -1;
  int notify_ = -1;
  pid_t pid_ = -1;
  int status_ = -1;
};

// A frontend of that broker: one connection.
class Frontend {
 public:
  Frontend(kj::AsyncIoContext& io, const BrokerProcess& broker);
  rpc::AgentPort::Client& port() { return port_; }

 private:
  kj::Own<kj::AsyncCapabilityStream> stream_;
  capnp::TwoPartyClient client_;
  rpc::AgentPort::Client port_;
};

// What a program did, as the guest protocol tells.
struct Outcome {
  bool ended = false;   // exited or failed came
  bool failed = false;  // never started
  bool signaled = false;
  uint32_t code = 0;  // exit status, signal or errno
  std::string out, err;
};

// A stream from Sandbox.connect, used blockingly.
class GuestStream {
 public:
  explicit GuestStream(int fd);
  ~GuestStream();
  GuestStream(const GuestStream&) = delete;
  GuestStream& operator=(const GuestStream&) = delete;
  bool hello(double seconds = 10);
  void start(uint32_t exec, const std::vector<std::string>& argv,
             const std::function<void(guest::Start::Builder)>& change = nullptr);
  // Reads until the exec ends, the stream ends or time is up.
  Outcome finish(uint32_t exec, double seconds = 20);
  // Reads until `text` was written to stdout.
  bool sees(uint32_t exec, const std::string& text, double seconds = 20);
  void close();

 private:
  bool pump(double seconds);
  void take(guest::GuestMessage::Reader message);

  int fd_;
  ipc::FrameReader reader_;
  bool greeted_ = false;
  std::map<uint32_t, Outcome> execs_;
};

}  // namespace cordon::broker::testing
