// The state directory of `cordon up`: ours alone, one instance at a time.
#pragma once
#include <sys/types.h>

#include <string>

#include "frontend/cli/fd.h"

namespace cordon::up {

using cli::check;
using cli::Fd;

class StateDirectory {
 public:
  // Makes or opens it. Refuses (UsageError) one that is not ours, that others
  // can write, or that another instance serves. With `otherUids`, processes
  // under other uids must be able to pass through it: it gets mode 0711, and a
  // parent that shuts them out is named and refused.
  StateDirectory(const std::string& path, bool otherUids);

  // Absolute, without symlinks.
  const std::string& path() const { return where; }

  // A listening socket at `name` below it; a stale one is replaced. The mode
  // holds before anything can connect.
  Fd listen(const char* name, mode_t mode, gid_t group) const;
  // A datagram socket there that says who sent each datagram.
  Fd datagrams(const char* name, mode_t mode, gid_t group) const;
  void remove(const char* name) const;

  // Waits until no broker holds the directory's `broker` part any more: one
  // whose `cordon up` was killed destroys its sandboxes first. False: it still
  // does after `seconds`.
  bool waitForEarlierBroker(int seconds) const;

 private:
  Fd bindAt(const char* name, int type, mode_t mode, gid_t group) const;

  std::string where;
  Fd directory, lock;
};

}  // namespace cordon::up
