// More rights than the program was given: namespaces, ids, capabilities,
// set-uid programs, limits.
#include <dirent.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "escape_suite/programs/program.h"

namespace cordon::escape_programs {
namespace {

constexpr uid_t kSomebody = 65534;
constexpr uid_t kAgentUid = 65000;

struct Namespace {
  const char* what;
  int flag;
  const char* file;
};

constexpr Namespace kNamespaces[] = {
    {"user", CLONE_NEWUSER, "user"},       {"mount", CLONE_NEWNS, "mnt"},
    {"pid", CLONE_NEWPID, "pid"},          {"net", CLONE_NEWNET, "net"},
    {"ipc", CLONE_NEWIPC, "ipc"},          {"uts", CLONE_NEWUTS, "uts"},
    {"cgroup", CLONE_NEWCGROUP, "cgroup"},
#ifdef CLONE_NEWTIME
    {"time", CLONE_NEWTIME, "time"},
#endif
};

int tryUnshare(const void* flag) {
  return errorOf(unshare(*static_cast<const int*>(flag)));
}

int tryClone3(const void* flag) {
  clone_args arguments{};
  arguments.flags = static_cast<unsigned long long>(*static_cast<const int*>(flag));
  arguments.exit_signal = SIGCHLD;
  long child = syscall(SYS_clone3, &arguments, sizeof(arguments));
  if (child == 0) _exit(0);
  int error = errorOf(child);
  if (child > 0) waitpid(static_cast<pid_t>(child), nullptr, 0);
  return error;
}

int tryClone(const void* flag) {
  long child =
      syscall(SYS_clone, *static_cast<const int*>(flag) | SIGCHLD, nullptr, nullptr, nullptr, 0);
  if (child == 0) _exit(0);
  int error = errorOf(child);
  if (child > 0) waitpid(static_cast<pid_t>(child), nullptr, 0);
  return error;
}

int joinAgents(const void* file) {
  char path[64];
  char* limit = path + sizeof(path) - 1;
  append(append(path, limit, "/proc/1/ns/"), limit, static_cast<const char*>(file));
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return errno;
  return errorOf(setns(fd, 0));
}

int join(char* space, size_t size, const char* first, const char* second) {
  char* limit = space + size - 1;
  append(append(space, limit, first), limit, second);
  return 0;
}

// Linking through a name for the system call: the libc wrappers would set the
// ids of every thread.
int becomeUid(const void* uid) {
  return errorOf(syscall(SYS_setresuid, *static_cast<const uid_t*>(uid),
                         *static_cast<const uid_t*>(uid), *static_cast<const uid_t*>(uid)));
}
int becomeGid(const void* gid) {
  return errorOf(syscall(SYS_setresgid, *static_cast<const uid_t*>(gid),
                         *static_cast<const uid_t*>(gid), *static_cast<const uid_t*>(gid)));
}
int dropGroups() {
  return errorOf(syscall(SYS_setgroups, 0, nullptr));
}

int allCapabilities() {
  __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  __user_cap_data_struct data[2]{};
  for (auto& half : data) half.effective = half.permitted = half.inheritable = 0xffffffff;
  data[1].effective = data[1].permitted = data[1].inheritable = 0x1ff;
  return errorOf(syscall(SYS_capset, &header, data));
}

int ambientCapability() {
  return errorOf(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_SETUID, 0, 0));
}

int securebits() {
  return errorOf(prctl(PR_SET_SECUREBITS, 0x2f, 0, 0, 0));
}

// The four ids of a process: real, effective, saved, file system.
struct Ids {
  long long real;
  bool differ;
};

void readUidLine(const char* line, void* context) {
  if (!startsWith(line, "Uid:")) return;
  auto* ids = static_cast<Ids*>(context);
  long long value = -1;
  bool first = true;
  for (const char* c = line + 4;; ++c) {
    if (*c >= '0' && *c <= '9') {
      value = (value < 0 ? 0 : value * 10) + (*c - '0');
      continue;
    }
    if (value >= 0) {
      if (first) ids->real = value;
      ids->differ = ids->differ || value != ids->real;
      first = false;
      value = -1;
    }
    if (*c == '\0') break;
  }
}

// Runs a set-uid program as somebody without rights; 0 when it had any other id
// at any time. A zombie still tells the ids it died with.
int runSetuid(const char* path) {
  pid_t child = fork();
  if (child < 0) return errno;
  if (child == 0) {
    if (geteuid() == 0) {
      if (syscall(SYS_setresgid, kSomebody, kSomebody, kSomebody) < 0) _exit(127);
      if (syscall(SYS_setresuid, kSomebody, kSomebody, kSomebody) < 0) _exit(127);
    }
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int fd = 0; fd < 3; ++fd) dup2(null, fd);
    char name[] = "program";
    char option[] = "--version";
    char* const argv[] = {name, option, nullptr};
    char* const envp[] = {nullptr};
    execve(path, argv, envp);
    _exit(127);
  }
  char status[64];
  char* limit = status + sizeof(status) - 1;
  append(appendNumber(append(status, limit, "/proc/"), limit, child), limit, "/status");
  bool gained = false;
  bool executed = true;
  for (long long end = monotonicMs() + 2000; monotonicMs() < end;) {
    siginfo_t info{};
    if (waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOHANG | WNOWAIT) < 0) break;
    Ids ids{-1, false};
    eachLine(status, readUidLine, &ids);
    gained = gained || ids.differ;
    if (info.si_pid == child) {
      executed = !(info.si_code == CLD_EXITED && info.si_status == 127);
      break;
    }
  }
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  if (gained) return 0;
  return executed ? EPERM : EACCES;
}

struct Limit {
  const char* what;
  int resource;
};

constexpr Limit kLimits[] = {
    {"core", RLIMIT_CORE},
    {"cpu", RLIMIT_CPU},
    {"fsize", RLIMIT_FSIZE},
    {"nofile", RLIMIT_NOFILE},
    {"nproc", RLIMIT_NPROC},
    {"memlock", RLIMIT_MEMLOCK},
    {"data", RLIMIT_DATA},
    {"nice", RLIMIT_NICE},
    {"rtprio", RLIMIT_RTPRIO},
    {"msgqueue", RLIMIT_MSGQUEUE},
    {"sigpending", RLIMIT_SIGPENDING},
};

int crash() {
  // With this action the kernel writes a core where the limit lets it.
  signal(SIGABRT, SIG_DFL);
  return raise(SIGABRT);
}

struct Status {
  long long noNewPrivs, seccomp;
  unsigned long long effective, permitted, inheritable, ambient, bounding;
  int lines;
};

unsigned long long hexAfterTab(const char* line) {
  const char* c = strchr(line, '\t');
  unsigned long long value = 0;
  for (c = c == nullptr ? "" : c + 1; *c != '\0'; ++c) {
    int digit = *c >= '0' && *c <= '9' ? *c - '0' : *c >= 'a' && *c <= 'f' ? *c - 'a' + 10 : -1;
    if (digit < 0) break;
    value = value * 16 + static_cast<unsigned long long>(digit);
  }
  return value;
}

void readStatusLine(const char* line, void* context) {
  auto* status = static_cast<Status*>(context);
  struct {
    const char* prefix;
    unsigned long long* sets;
  } const sets[] = {{"CapEff:", &status->effective},
                    {"CapPrm:", &status->permitted},
                    {"CapInh:", &status->inheritable},
                    {"CapAmb:", &status->ambient},
                    {"CapBnd:", &status->bounding}};
  for (const auto& set : sets) {
    if (!startsWith(line, set.prefix)) continue;
    *set.sets = hexAfterTab(line);
    status->lines++;
  }
  if (startsWith(line, "NoNewPrivs:")) {
    status->noNewPrivs = static_cast<long long>(hexAfterTab(line));
    status->lines++;
  }
  if (startsWith(line, "Seccomp:")) {
    status->seccomp = static_cast<long long>(hexAfterTab(line));
    status->lines++;
  }
}

void reportPosture() {
  Status status{};
  bool readable = eachLine("/proc/self/status", readStatusLine, &status);
  report({{"readable", readable && status.lines == 7},
          {"uid", getuid()},
          {"gid", getgid()},
          {"no_new_privs", prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)},
          {"seccomp", status.seccomp},
          {"cap_effective", static_cast<long long>(status.effective)},
          {"cap_permitted", static_cast<long long>(status.permitted)},
          {"cap_inheritable", static_cast<long long>(status.inheritable)},
          {"cap_ambient", static_cast<long long>(status.ambient)},
          {"cap_bounding", static_cast<long long>(status.bounding)},
          {"groups", getgroups(0, nullptr)}});
}

}  // namespace

void userNamespace(const Arguments&) {
  char what[64];
  for (const Namespace& space : kNamespaces) {
    join(what, sizeof(what), "unshare_", space.what);
    tried(what, inChild(tryUnshare, &space.flag));
    // The flag for a time namespace is an exit signal to the old call.
    if ((space.flag & CSIGNAL) == 0) {
      join(what, sizeof(what), "clone_", space.what);
      tried(what, inChild(tryClone, &space.flag));
    }
    join(what, sizeof(what), "clone3_", space.what);
    tried(what, inChild(tryClone3, &space.flag));
    join(what, sizeof(what), "setns_", space.what);
    tried(what, inChild(joinAgents, space.file));
  }
  int together = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWPID;
  tried("unshare_together", inChild(tryUnshare, &together));
  tried("clone_together", inChild(tryClone, &together));
}

void becomeRoot(const Arguments&) {
  uid_t root = 0;
  // Somebody who is root already gains nothing; another id shows the right.
  uid_t other = getuid() == 0 ? kSomebody : root;
  tried("setresuid", inChild(becomeUid, &other));
  tried("setresgid", inChild(becomeGid, &other));
  tried("agent_uid", inChild(becomeUid, &kAgentUid));
  tried("agent_gid", inChild(becomeGid, &kAgentUid));
  tried("setgroups", inChild(dropGroups));
  tried("capset", inChild(allCapabilities));
  tried("ambient", inChild(ambientCapability));
  tried("securebits", inChild(securebits));
}

void setuidBinary(const Arguments&) {
  DIR* directory = opendir("/usr/bin");
  int found = 0;
  while (dirent* entry = directory == nullptr ? nullptr : readdir(directory)) {
    char path[512];
    join(path, sizeof(path), "/usr/bin/", entry->d_name);
    struct stat status {};
    if (lstat(path, &status) < 0 || !S_ISREG(status.st_mode)) continue;
    if ((status.st_mode & S_ISUID) == 0 || status.st_uid == getuid()) {
      if ((status.st_mode & S_ISUID) == 0 || getuid() != 0) continue;
    }
    ++found;
    tried("run", runSetuid(path));
    if (found == 16) break;
  }
  if (directory != nullptr) closedir(directory);
  // One's own: root's it can't become, and a set-uid bit on it is no use.
  int fd = open("./set-uid", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0755);
  if (fd >= 0) {
    tried("own_file_of_root", geteuid() == 0 ? EPERM : errorOf(fchown(fd, 0, 0)));
    close(fd);
    unlink("./set-uid");
  }
  report({{"found", found}});
}

void raiseRlimits(const Arguments&) {
  int limited = 0;
  for (const Limit& limit : kLimits) {
    rlimit old{};
    if (getrlimit(limit.resource, &old) < 0 || old.rlim_max == RLIM_INFINITY) continue;
    ++limited;
    char what[64];
    join(what, sizeof(what), "set_", limit.what);
    rlimit more{.rlim_cur = old.rlim_cur, .rlim_max = old.rlim_max + 1};
    tried(what, errorOf(setrlimit(limit.resource, &more)));
    join(what, sizeof(what), "prlimit_", limit.what);
    more.rlim_max = RLIM_INFINITY;
    tried(what, errorOf(syscall(SYS_prlimit64, 0, limit.resource, &more, nullptr)));
  }
  report({{"limited", limited}});
}

void coreRlimit(const Arguments&) {
  rlimit core{};
  getrlimit(RLIMIT_CORE, &core);
  constexpr long long kMany = 1LL << 62;
  report(
      {{"soft", core.rlim_cur == RLIM_INFINITY ? kMany : static_cast<long long>(core.rlim_cur)},
       {"hard", core.rlim_max == RLIM_INFINITY ? kMany : static_cast<long long>(core.rlim_max)}});
  rlimit none{.rlim_cur = 0, .rlim_max = core.rlim_max};
  tried("lower_to_zero", errorOf(setrlimit(RLIMIT_CORE, &none)));
  rlimit all{.rlim_cur = RLIM_INFINITY, .rlim_max = RLIM_INFINITY};
  tried("raise", errorOf(setrlimit(RLIMIT_CORE, &all)));
  tried("raise_by_prlimit", errorOf(prlimit(0, RLIMIT_CORE, &all, nullptr)));
  pid_t child = fork();
  if (child == 0) _exit(crash());
  int status = 0;
  if (child > 0 && waitpid(child, &status, 0) == child) {
    unlink("./core");
    report({{"crashed", WIFSIGNALED(status)}, {"dumped", WCOREDUMP(status) != 0}});
  }
}

void posture(const Arguments&) {
  reportPosture();
}

// What runs from a file that is on no mount is under the same restrictions.
void memfdExec(const Arguments& arguments) {
  if (strcmp(arguments.text(0), "inside") == 0) {
    reportPosture();
    return;
  }
  int from = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  int copy = static_cast<int>(syscall(SYS_memfd_create, "program", MFD_CLOEXEC));
  if (from < 0 || copy < 0) {
    // No way to run one is a fine answer too.
    tried("memfd", errno);
    return;
  }
  struct stat status {};
  fstat(from, &status);
  for (off_t at = 0; at < status.st_size;) {
    if (sendfile(copy, from, &at, static_cast<size_t>(status.st_size - at)) <= 0) break;
  }
  pid_t child = fork();
  if (child == 0) {
    char name[] = "memfd", what[] = "memfd_exec", safe[] = "safe", inside[] = "inside";
    char* const argv[] = {name, what, safe, inside, nullptr};
    char* const envp[] = {nullptr};
    syscall(SYS_execveat, copy, "", argv, envp, AT_EMPTY_PATH);
    tried("memfd", errno);
    _exit(1);
  }
  if (child > 0) waitpid(child, nullptr, 0);
}

}  // namespace cordon::escape_programs
