#include <errno.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "jailer/seccomp_profile.h"

namespace cordon::jailer {

namespace {

// Beyond what `tuned` allows, or with more arguments than there.
std::vector<SyscallGroup> allowedByBuildToo() {
  return {
      {"sockets of three families: asyncio, multiprocessing and servers on loopback; netlink, "
       "vsock, packet and kernel crypto are for nobody here",
       {"socket"},
       {{0, kLow32, AF_UNIX}, {0, kLow32, AF_INET}, {0, kLow32, AF_INET6}}},
      {"pairs: asyncio wakes itself by one, multiprocessing's Pipe is one",
       {"socketpair"},
       {{0, kLow32, AF_UNIX}}},
      {"using sockets; sendmsg and recvmsg hand descriptors over (forkserver)",
       {"bind", "listen", "accept4", "connect", "getsockname", "getpeername", "getsockopt",
        "setsockopt", "sendto", "recvfrom", "sendmsg", "recvmsg", "shutdown"}},
      {"select.epoll", {"epoll_create1", "epoll_ctl", "epoll_wait"}},
      {"descriptors that do not block (asyncio); two requests are refused (refusedArguments)",
       {"ioctl"}},
      {"copies of descriptors: ar, strip and util-linux; dup3 is freopen's", {"dup", "dup3"}},
      {"whole-file locks", {"flock"}},
      {"links and fifos, which tar unpacks; link is that of named semaphores "
       "(multiprocessing) and of git's objects",
       {"link", "linkat", "symlink", "mknodat"}},
      {"older and newer forms that tar and make have built in", {"creat", "stat", "readlinkat"}},
      {"how large a file system is", {"statfs"}},
      {"mappings that grow, and files that are written back (git)", {"mremap", "msync", "fsync"}},
      {"make takes its own ids before each command", {"setresuid", "setresgid"}},
      {"supplementary groups", {"getgroups"}},
      {"how many workers to start", {"sched_getaffinity"}},
      {"timers and figures of the process", {"setitimer", "times"}},
      {"randomness", {"getrandom"}},
      {"limits: `ulimit`, and the stack of make and gcc; RLIMIT_CORE can be read only "
       "(refusedArguments)",
       {"prlimit64"}},
  };
}

std::vector<RefusedArgument> refusedArgumentsOfBuild() {
  return {
      {"types into the terminal it was started from", "ioctl", 1, TIOCSTI},
      {"the console's paste buffer does the same", "ioctl", 1, 0x541C /* TIOCLINUX */},
      {"a core file starts a root helper on the host", "prlimit64", 1, RLIMIT_CORE, 2},
  };
}

std::vector<SyscallGroup> refusedByBuild() {
  return {
      {"no program of this kind was seen to need one of its options", {"prctl"}},
      {"other owners: an ordinary user has none to give, and tar goes on",
       {"chown", "fchown", "lchown", "fchownat"}},
      {"a copy inside the kernel; callers read and write then", {"sendfile"}},
  };
}

}  // namespace

Profile buildProfile() {
  Profile profile = tunedProfile();
  for (const SyscallGroup& group : allowedByBuildToo()) {
    for (const char* call : group.calls) profile = without(std::move(profile), call);
    profile.allowed.push_back(group);
  }
  profile.refusedArguments = refusedArgumentsOfBuild();
  for (auto& refused : refusedToEverybody()) {
    // Of sockets it has no netlink at all.
    bool decided = std::string_view(refused.call) == "socket";
    if (!decided && profile.allows(refused.call)) profile.refusedArguments.push_back(refused);
  }
  profile.refused = refusedByBuild();
  return profile;
}

}  // namespace cordon::jailer
