// Attacks on vm-agent, the only process in the sandbox with any right: read it,
// trace it, stop it, starve it, replace it.
//
// Armed, the targets are pid 1 and the parent: the agent. Otherwise it is the
// parent alone, and nothing that would change it is done: pid 1 may be a
// machine's.
#include <fcntl.h>
#include <linux/kcmp.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "escape_suite/programs/program.h"

namespace cordon::escape_programs {
namespace {

struct Targets {
  pid_t pids[2];
  int count;
};

Targets targets(const Arguments& arguments) {
  Targets found{};
  if (arguments.armed) found.pids[found.count++] = 1;
  if (!arguments.armed || getppid() > 1) found.pids[found.count++] = getppid();
  return found;
}

// "/proc/PID/NAME" in a buffer of its own.
struct ProcPath {
  char text[128];
  ProcPath(pid_t pid, const char* name) {
    char* limit = text + sizeof(text) - 1;
    char* end = append(text, limit, "/proc/");
    end = append(appendNumber(end, limit, pid), limit, "/");
    append(end, limit, name);
  }
};

int writeText(const char* path, const char* text) {
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return errno;
  int error = errorOf(write(fd, text, strlen(text)));
  close(fd);
  return error;
}

int attach(const void* pid) {
  pid_t target = *static_cast<const pid_t*>(pid);
  int error = errorOf(ptrace(PTRACE_ATTACH, target, nullptr, nullptr));
  if (error == 0) {
    waitpid(target, nullptr, __WALL);
    ptrace(PTRACE_DETACH, target, nullptr, nullptr);
  }
  return error;
}

// Seizing stops nobody; the end of this child lets go again.
int seize(const void* pid) {
  return errorOf(ptrace(PTRACE_SEIZE, *static_cast<const pid_t*>(pid), nullptr, nullptr));
}

int readMemory(pid_t pid) {
  char byte = 0;
  iovec mine{.iov_base = &byte, .iov_len = 1};
  iovec theirs{.iov_base = nullptr, .iov_len = 1};
  return errorOf(process_vm_readv(pid, &mine, 1, &theirs, 1, 0));
}

int writeMemory(pid_t pid) {
  char byte = 0;
  iovec mine{.iov_base = &byte, .iov_len = 1};
  iovec theirs{.iov_base = nullptr, .iov_len = 1};
  return errorOf(process_vm_writev(pid, &mine, 1, &theirs, 1, 0));
}

int stealDescriptor(pid_t pid, int which) {
  int pidfd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (pidfd < 0) return errno;
  int fd = static_cast<int>(syscall(SYS_pidfd_getfd, pidfd, which, 0));
  int error = errorOf(fd);
  if (fd >= 0) close(fd);
  close(pidfd);
  return error;
}

struct Theft {
  pid_t self;
  long long processes, others, stolen;
  int lastError;
  uid_t uid;
};

// Descriptors of every process that is not of this uid.
bool stealFrom(int pid, void* context) {
  auto* theft = static_cast<Theft*>(context);
  theft->processes++;
  struct stat status {};
  if (pid == theft->self || stat(ProcPath(pid, "").text, &status) < 0) return true;
  // A process that may not be dumped shows as root's: not of this uid either way.
  if (status.st_uid == theft->uid && pid != 1) return true;
  theft->others++;
  for (int fd = 0; fd < 16; ++fd) {
    int error = stealDescriptor(pid, fd);
    if (error == 0) {
      theft->stolen++;
    } else {
      theft->lastError = error;
    }
  }
  return true;
}

}  // namespace

void ptraceAgent(const Arguments& arguments) {
  Targets agents = targets(arguments);
  for (int i = 0; i < agents.count; ++i) {
    pid_t pid = agents.pids[i];
    tried("seize", inChild(seize, &pid));
    if (arguments.armed) tried("attach", inChild(attach, &pid));
    gated("process_vm_readv", readMemory(pid));
    gated("process_vm_writev", writeMemory(pid));
    tried("kcmp", errorOf(syscall(SYS_kcmp, pid, getpid(), KCMP_VM, 0, 0)));
    report({{"targets", agents.count}});
  }
}

void agentMemory(const Arguments& arguments) {
  // What the kernel guards by "may trace"; opening is enough to know.
  const char* const guarded[] = {
      "mem",       "environ", "maps",   "smaps", "auxv",  "stack", "syscall",     "pagemap",
      "map_files", "fd",      "fdinfo", "cwd/",  "root/", "io",    "personality", "clear_refs"};
  const char* const links[] = {"exe", "cwd", "root", "ns/mnt", "ns/pid", "ns/net", "ns/user"};
  Targets agents = targets(arguments);
  for (int i = 0; i < agents.count; ++i) {
    pid_t pid = agents.pids[i];
    for (const char* name : guarded) {
      int flags = startsWith(name, "clear_refs") ? O_WRONLY : O_RDONLY;
      int error = openAndClose(ProcPath(pid, name).text, flags);
      char what[64];
      char* limit = what + sizeof(what) - 1;
      append(append(what, limit, "open_"), limit, name);
      for (char* c = what; *c != '\0'; ++c) {
        if (*c == '/') *c = '\0';
      }
      tried(what, error);
    }
    tried("write_mem", openAndClose(ProcPath(pid, "mem").text, O_RDWR));
    int readable = 0;
    for (const char* name : links) {
      char target[256];
      readable += readlink(ProcPath(pid, name).text, target, sizeof(target)) >= 0;
    }
    tried("read_links", readable == 0 ? EACCES : 0);
  }
  report({{"targets", agents.count}});
}

void stopAgent(const Arguments& arguments) {
  Targets agents = targets(arguments);
  for (int i = 0; i < agents.count; ++i) {
    pid_t pid = agents.pids[i];
    tried("signal", errorOf(kill(pid, 0)));
    rlimit limit{};
    tried("read_rlimit", errorOf(prlimit(pid, RLIMIT_NOFILE, nullptr, &limit)));
    if (!arguments.armed) continue;
    tried("sigstop", errorOf(kill(pid, SIGSTOP)));
    tried("sigkill", errorOf(kill(pid, SIGKILL)));
    tried("sigterm", errorOf(kill(pid, SIGTERM)));
    tried("sigqueue", errorOf(sigqueue(pid, SIGSEGV, {})));
    tried("tgkill", errorOf(syscall(SYS_tgkill, pid, pid, SIGSTOP)));
    rlimit none{.rlim_cur = 0, .rlim_max = 0};
    tried("no_files", errorOf(prlimit(pid, RLIMIT_NOFILE, &none, nullptr)));
    tried("no_cpu", errorOf(prlimit(pid, RLIMIT_CPU, &none, nullptr)));
    tried("setpriority", errorOf(setpriority(PRIO_PROCESS, static_cast<id_t>(pid), 19)));
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(0, &one);
    tried("sched_setaffinity", errorOf(sched_setaffinity(pid, sizeof(one), &one)));
    sched_param parameters{.sched_priority = 0};
    tried("sched_setscheduler", errorOf(sched_setscheduler(pid, SCHED_IDLE, &parameters)));
    tried("ioprio_set", errorOf(syscall(SYS_ioprio_set, 1, pid, 3 << 13)));
    tried("move_pages", errorOf(syscall(SYS_move_pages, pid, 0UL, nullptr, nullptr, nullptr, 0)));
    tried("oom_score_adj", openAndClose(ProcPath(pid, "oom_score_adj").text, O_WRONLY));
    // Anybody may open it; the right is looked at when it is written.
    tried("timerslack", writeText(ProcPath(pid, "timerslack_ns").text, "50000"));
    tried("setpgid", errorOf(setpgid(pid, pid)));
  }
  report({{"targets", agents.count}});
}

// Where /proc doesn't even show the process (hidepid), that is a refusal too.
int openExe(pid_t pid, int flags) {
  int error = openAndClose(ProcPath(pid, "exe").text, flags);
  return error == ENOENT ? EACCES : error;
}

void overwriteAgentExe(const Arguments& arguments) {
  Targets agents = targets(arguments);
  for (int i = 0; i < agents.count; ++i) {
    // ETXTBSY would mean that only its being in use saved it.
    gated("open_exe_for_writing", openExe(agents.pids[i], O_WRONLY));
    gated("open_exe", openExe(agents.pids[i], O_RDONLY));
  }
  gated("open_own_agent", access("/.cordon/vm-agent", F_OK) < 0
                              ? EACCES  // there is none to be had
                              : openAndClose("/.cordon/vm-agent", O_RDONLY));
  const char* const paths[] = {"/.cordon/vm-agent", "/.cordon"};
  for (const char* path : paths) {
    if (!arguments.armed) break;
    tried("write", openAndClose(path, O_WRONLY));
    tried("truncate", errorOf(truncate(path, 0)));
    tried("chmod", errorOf(chmod(path, 0777)));
    tried("chown", errorOf(chown(path, getuid(), getgid())));
    tried("unlink", errorOf(unlink(path)));
    tried("rename", errorOf(rename(path, "./agent")));
    tried("rename_over", errorOf(rename("./escape-programs", path)));
  }
  // Its own image: a program may not be able to change what others run from it.
  tried("write_own_exe", openAndClose("/proc/self/exe", O_WRONLY));
}

void stealDescriptors(const Arguments& arguments) {
  Theft theft{getpid(), 0, 0, 0, 0, getuid()};
  if (arguments.armed) {
    eachProcess(stealFrom, &theft);
  } else {
    theft.processes = theft.others = 1;
    theft.lastError = stealDescriptor(getppid(), 0);
    theft.stolen = theft.lastError == 0;
  }
  report({{"processes", theft.processes},
          {"others", theft.others},
          {"stolen", theft.stolen},
          {"error", theft.lastError}});
}

}  // namespace cordon::escape_programs
