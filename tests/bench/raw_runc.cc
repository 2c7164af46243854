// Raw runc for the benchmark: the same bundle as a sandbox of cordon's, driven
// as one would by hand, and timed.
//
//   raw-runc RUNC INIT      INIT is the static program that becomes the container's init
//
// A line on stdin, an answer in nanoseconds on stdout ("error: …" on failure):
//   exec              `runc exec` of /bin/true in a live container
//   cold              `runc run --detach` to the first byte, SIGKILL, `runc delete`
//   last-first-byte   of the last `cold`: until the first byte
// Ends at end of file and leaves nothing. Needs root.
#include <fcntl.h>
#include <kj/async-io.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <system_error>

#include "jailer/seccomp.h"
#include "runtimes/images.h"
#include "runtimes/oci/bundle.h"
#include "tests/bench/workspace.h"

extern char** environ;

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using cordon::bench::fail;

// Host ids behind cordon's own span, so that no sandbox has them.
constexpr uint32_t kFirstId = 1946157056;
constexpr uint32_t kIdCount = 65536;
constexpr char kCgroupParent[] = "/cordon-bench";

long long nanoseconds(Clock::duration duration) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count();
}

// Runs a program to its end; its stdin is `in`, its output goes nowhere that
// anybody waits on.
void runToEnd(const std::vector<std::string>& argv, int in) {
  std::vector<char*> arguments;
  for (const std::string& a : argv) arguments.push_back(const_cast<char*>(a.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
  pid_t child = -1;
  int error = posix_spawn(&child, argv[0].c_str(), &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw std::system_error(error, std::generic_category(), argv[0]);
  int status = 0;
  if (waitpid(child, &status, 0) < 0) fail("waitpid");
  if (status != 0) {
    throw std::runtime_error(argv[0] + " " + argv.at(1) + " ended with wait status " +
                             std::to_string(status));
  }
}

// A container that runs, with our end of its init's socket.
struct Container {
  kj::AutoCloseFd socket;
  std::string name;
  pid_t init = 0;
};

class RawRunc {
 public:
  RawRunc(std::string runcPath, const std::string& init, kj::AsyncIoContext& io)
      : runc(std::move(runcPath)) {
    images = cordon::runtimes::ImageStore::open(workspace.path + "/images", {}, init,
                                                io.provider->getTimer());
    auto resolved = images->resolve("", false).wait(io.waitScope);
    if (resolved.is<cordon::runtimes::ImageRefusal>()) {
      throw std::runtime_error(resolved.get<cordon::runtimes::ImageRefusal>().detail);
    }
    image = resolved.get<std::shared_ptr<const cordon::runtimes::Image>>();
    seccomp = cordon::jailer::agentFilterAsOciJson();
    fs::create_directory(workspace.path + "/state");
    chmod((workspace.path + "/state").c_str(), 0711);
  }

  ~RawRunc() {
    if (live) {
      try {
        remove(*live);
      } catch (const std::exception& error) {
        std::cerr << "raw-runc: " << error.what() << '\n';
      }
    }
    images->removeAll();
    removeCgroups();
  }

  long long exec() {
    if (!live) live = std::make_unique<Container>(start("live"));
    auto begin = Clock::now();
    runToEnd({runc, "--root", state(), "exec", live->name, "/bin/true"}, nullFd);
    return nanoseconds(Clock::now() - begin);
  }

  long long cold() {
    auto begin = Clock::now();
    Container container = start("cold");
    firstByte = nanoseconds(Clock::now() - begin);
    remove(container);
    return nanoseconds(Clock::now() - begin);
  }

  long long lastFirstByte() const { return firstByte; }

 private:
  std::string state() const { return workspace.path + "/state"; }
  std::string bundle(const std::string& name) const { return workspace.path + "/" + name; }

  void writeBundle(const std::string& name) {
    cordon::runtimes::BundleInput input;
    input.hostname = "bench";
    input.image = image.get();
    // A sandbox's defaults (broker/limits.h).
    input.limits.memoryBytes = 512 << 20;
    input.limits.pids = 256;
    input.limits.cpuMillis = 1000;
    input.limits.cpuTimeMs = input.limits.wallMs = 60'000;
    input.limits.fileSizeBytes = input.limits.diskBytes = 64 << 20;
    input.limits.files = 1024;
    input.limits.tmpBytes = input.limits.shmBytes = 64 << 20;
    input.limits.outputBytes = 1 << 20;
    input.ids = {kFirstId, kIdCount};
    input.cgroupsPath = std::string(kCgroupParent) + "/" + name;
    input.hardFiles = 4096;
    input.hardCore = 1;
    input.cpus = static_cast<unsigned>(sysconf(_SC_NPROCESSORS_CONF));
    input.seccomp = seccomp;
    fs::create_directory(bundle(name));
    std::ofstream file(bundle(name) + "/config.json");
    file << cordon::runtimes::bundleConfig(input);
    file.close();
    if (!file) throw std::runtime_error("can't write config.json");
  }

  // Returns at the first byte from the container's init.
  Container start(const std::string& name) {
    writeBundle(name);
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0) fail("socketpair");
    Container container{kj::AutoCloseFd(ends[0]), name, 0};
    kj::AutoCloseFd theirs(ends[1]);
    std::string pidFile = bundle(name) + "/pid";
    runToEnd({runc, "--root", state(), "run", "--detach", "--bundle", bundle(name), "--pid-file",
              pidFile, name},
             theirs.get());
    theirs = nullptr;
    char byte;
    if (read(container.socket.get(), &byte, 1) != 1) throw std::runtime_error("no first byte");
    std::ifstream(pidFile) >> container.init;
    return container;
  }

  // As one would by hand when speed counts: `runc delete --force` polls every
  // 100 ms, so the init is killed and awaited here and the rest is deleted.
  void remove(const Container& container) {
    kj::AutoCloseFd init(static_cast<int>(syscall(SYS_pidfd_open, container.init, 0)));
    if (init.get() >= 0) {
      syscall(SYS_pidfd_send_signal, init.get(), SIGKILL, nullptr, 0);
      pollfd exited{init.get(), POLLIN, 0};
      poll(&exited, 1, 10'000);
    }
    runToEnd({runc, "--root", state(), "delete", container.name}, nullFd);
    fs::remove_all(bundle(container.name));
  }

  // runc removes the container's and leaves the parent.
  static void removeCgroups() {
    std::error_code ignored;
    for (const auto& hierarchy : fs::directory_iterator("/sys/fs/cgroup", ignored)) {
      fs::remove(hierarchy.path() / (kCgroupParent + 1), ignored);
    }
    fs::remove(fs::path("/sys/fs/cgroup") / (kCgroupParent + 1), ignored);
  }

  std::string runc;
  cordon::bench::Workspace workspace;
  kj::Own<cordon::runtimes::ImageStore> images;
  std::shared_ptr<const cordon::runtimes::Image> image;
  std::string seccomp;
  std::unique_ptr<Container> live;
  kj::AutoCloseFd nullFd{open("/dev/null", O_RDWR | O_CLOEXEC)};
  long long firstByte = 0;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: raw-runc RUNC INIT\n";
    return 2;
  }
  signal(SIGPIPE, SIG_IGN);
  try {
    auto io = kj::setupAsyncIo();
    RawRunc raw(argv[1], argv[2], io);
    for (std::string line; std::getline(std::cin, line);) {
      try {
        if (line == "exec") {
          std::cout << raw.exec() << std::endl;
        } else if (line == "cold") {
          std::cout << raw.cold() << std::endl;
        } else if (line == "last-first-byte") {
          std::cout << raw.lastFirstByte() << std::endl;
        } else {
          std::cout << "error: no such request" << std::endl;
        }
      } catch (const std::exception& error) {
        std::cout << "error: " << error.what() << std::endl;
      }
    }
  } catch (const kj::Exception& error) {
    std::cerr << "raw-runc: " << error.getDescription().cStr() << '\n';
    return 1;
  } catch (const std::exception& error) {
    std::cerr << "raw-runc: " << error.what() << '\n';
    return 1;
  }
  return 0;
}
