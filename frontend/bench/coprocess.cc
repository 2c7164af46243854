#include "frontend/bench/coprocess.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>
#include <system_error>

extern char** environ;

namespace cordon::bench {

namespace {

[[noreturn]] void fail(int error, const std::string& what) {
  throw std::system_error(error, std::generic_category(), what);
}

}  // namespace

Coprocess::Coprocess(const std::vector<std::string>& argv) : program(argv.at(0)) {
  // Sockets and not pipes: a write to a helper that ended is an error here and
  // not a SIGPIPE.
  int in[2], out[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, in) < 0) fail(errno, "socketpair");
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, out) < 0) {
    int error = errno;
    close(in[0]);
    close(in[1]);
    fail(error, "socketpair");
  }

  std::vector<char*> arguments;
  for (const std::string& a : argv) arguments.push_back(const_cast<char*>(a.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in[1], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  int error = posix_spawn(&child, program.c_str(), &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(in[1]);
  close(out[1]);
  toChild = in[0];
  fromChild = out[0];
  if (error != 0) {
    close(toChild);
    close(fromChild);
    fail(error, "can't start " + program);
  }
}

Coprocess::~Coprocess() {
  close(toChild);
  close(fromChild);
  while (waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
}

std::string Coprocess::ask(const std::string& line) {
  std::string message = line + "\n";
  for (size_t sent = 0; sent < message.size();) {
    ssize_t n = send(toChild, message.data() + sent, message.size() - sent, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(errno, program + " ended");
    sent += static_cast<size_t>(n);
  }
  std::string answer = readLine();
  if (answer.rfind("error: ", 0) == 0) throw std::runtime_error(program + ": " + answer);
  return answer;
}

double Coprocess::askMilliseconds(const std::string& line) {
  return std::stod(ask(line)) / 1e6;
}

std::string Coprocess::readLine() {
  for (;;) {
    size_t end = pending.find('\n');
    if (end != std::string::npos) {
      std::string line = pending.substr(0, end);
      pending.erase(0, end + 1);
      return line;
    }
    char buffer[4096];
    ssize_t n = read(fromChild, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) throw std::runtime_error(program + " ended in the middle of a measurement");
    pending.append(buffer, static_cast<size_t>(n));
  }
}

}  // namespace cordon::bench
