// For tests of what a process can't take back: it happens to a child.
#pragma once
#include <fcntl.h>
#include <kj/exception.h>
#include <sys/wait.h>
#include <unistd.h>

#include <exception>
#include <functional>
#include <string>

namespace cordon::broker::testing {

// What `body` returns in a forked child, or that it threw or the child died of
// it; by habit "" = fine.
inline std::string inChild(const std::function<std::string()>& body) {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) return "pipe";
  pid_t pid = fork();
  if (pid == 0) {
    std::string text;
    try {
      text = body();
    } catch (const kj::Exception& e) {
      text = std::string("threw ") + e.getDescription().cStr();
    } catch (const std::exception& e) {
      text = std::string("threw ") + e.what();
    }
    (void)!write(fds[1], text.data(), text.size());
    _exit(0);
  }
  close(fds[1]);
  std::string text;
  char buffer[4096];
  ssize_t n;
  while ((n = read(fds[0], buffer, sizeof(buffer))) > 0)
    text.append(buffer, static_cast<size_t>(n));
  close(fds[0]);
  int status = 0;
  waitpid(pid, &status, 0);
  if (status != 0) return "the child died of it: " + std::to_string(status);
  return text;
}

}  // namespace cordon::broker::testing
