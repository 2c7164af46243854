// One of the programs that `cordon up` runs: how it is started, and its life.
#pragma once
#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "frontend/cli/fd.h"

namespace cordon::up {

using cli::check;
using cli::Fd;

// Whose privileges a part keeps.
struct Identity {
  std::optional<uid_t> uid;  // becomes this user and group, without others
  gid_t gid = 0;
  bool dropEverything = false;  // no capability, no_new_privs
};

struct PartSpec {
  std::string name;     // for the log
  std::string program;  // path
  std::vector<std::string> arguments;
  Identity identity;
  std::string socketName;    // in LISTEN_FDNAMES
  int socket = -1;           // the listening socket, borrowed
  std::string notifySocket;  // path
  int signalAtParentsDeath = 0;
};

// How a process ended.
struct Ending {
  bool signaled = false;
  int code = 0;
  bool clean() const { return !signaled && code == 0; }
  std::string text() const;  // "exited with 1", "was killed by signal 9 (Killed)"
};

// A running part. Its destructor kills it.
class Part {
 public:
  // Starts the program, by a descriptor that is opened before privileges are
  // dropped: it may lie where its new user can't walk. Throws when it could
  // not be exec'd, with the step and errno.
  explicit Part(const PartSpec& spec);
  ~Part();
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;

  pid_t pid() const { return process; }
  // Readable when it has ended.
  int pidfd() const { return handle.get(); }
  void signal(int number) const;
  // Its ending, once it has ended; asked again, the same.
  std::optional<Ending> ended();
  // Waits at most so long.
  std::optional<Ending> wait(int milliseconds);

 private:
  pid_t process = -1;
  Fd handle;
  std::optional<Ending> ending;
};

}  // namespace cordon::up
