// Stands for cordon-broker and cordon-agents in up_test: says on standard error
// how it was started, and behaves as a file beside it says.
//
// NAME.behaviour holds words: `die` before it is ready, `mute` never ready,
// `fail` ends with 3 on SIGTERM, `deaf` to SIGTERM, `spoof` lets a child say
// READY in its place.
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

namespace {

std::string slurp(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string field(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with(name + ":")) continue;
    size_t value = line.find_first_not_of(" \t", name.size() + 1);
    return value == std::string::npos ? "" : line.substr(value);
  }
  return "?";
}

std::string variable(const char* name) {
  const char* value = getenv(name);
  return value == nullptr ? "" : value;
}

std::string openDescriptors() {
  std::string list;
  for (int fd = 0; fd < 256; ++fd) {
    struct stat st {};
    if (fstat(fd, &st) == 0) list += std::to_string(fd) + (S_ISSOCK(st.st_mode) ? "s" : "") + ",";
  }
  return list;
}

void sayReady() {
  std::string path = variable("NOTIFY_SOCKET");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const char text[] = "STATUS=up\nREADY=1";
  if (sendto(fd, text, sizeof(text) - 1, 0, reinterpret_cast<sockaddr*>(&address),
             sizeof(address)) < 0) {
    perror("double: READY");
  }
  close(fd);
}

}  // namespace

int main(int argc, char** argv) {
  std::string self = argv[0];
  std::string name = self.substr(self.rfind('/') + 1);
  std::string behaviour = slurp(self + ".behaviour");
  auto does = [&](const char* word) { return behaviour.find(word) != std::string::npos; };

  sigset_t blocked;
  sigprocmask(SIG_SETMASK, nullptr, &blocked);
  int deathSignal = 0;
  prctl(PR_GET_PDEATHSIG, &deathSignal);
  std::string arguments;
  for (int i = 1; i < argc; ++i) arguments += std::string(argv[i]) + " ";
  bool listenPidIsOurs = variable("LISTEN_PID") == std::to_string(getpid());
  fprintf(stderr,
          "double name=%s pid=%d uid=%s gid=%s groups=[%s] capeff=%s capbnd=%s nnp=%s fds=%s "
          "fdnames=%s listen=%s ours=%d death=%d term-blocked=%d session=%d args=%s\n",
          name.c_str(), getpid(), field("Uid").c_str(), field("Gid").c_str(),
          field("Groups").c_str(), field("CapEff").c_str(), field("CapBnd").c_str(),
          field("NoNewPrivs").c_str(), openDescriptors().c_str(),
          variable("LISTEN_FDNAMES").c_str(), variable("LISTEN_FDS").c_str(), listenPidIsOurs,
          deathSignal, sigismember(&blocked, SIGTERM), getsid(0) == getpid(), arguments.c_str());

  sigset_t term;
  sigemptyset(&term);
  sigaddset(&term, SIGTERM);
  sigprocmask(SIG_BLOCK, &term, nullptr);
  if (does("die")) return 4;
  if (does("spoof")) {
    pid_t child = fork();
    if (child == 0) {
      sayReady();
      _exit(0);
    }
    waitpid(child, nullptr, 0);
  } else if (!does("mute")) {
    sayReady();
  }
  while (true) {
    int number = 0;
    sigwait(&term, &number);
    if (does("deaf")) continue;
    fprintf(stderr, "double name=%s ended\n", name.c_str());
    return does("fail") ? 3 : 0;
  }
}
