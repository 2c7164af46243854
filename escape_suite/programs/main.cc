// escape-programs NAME armed|safe [ARGUMENT]...
//
// The hostile programs of the escape suite in one static binary, so that a
// sandbox needs nothing but a shell to receive it. Exit status: 0 when the
// program came to its end (whatever it found), 64 for a usage error.
#include <signal.h>
#include <unistd.h>

#include <cstring>

#include "escape_suite/programs/program.h"

namespace cordon::escape_programs {
namespace {

constexpr int kUsageError = 64;

constexpr Program kPrograms[] = {
    // The thirteen.
    {"connect", connectOutside, 1},
    {"raw_socket", rawSocket, 1},
    {"write_outside", writeOutside, 1},
    {"read_shadow", readShadow, 1},
    {"mount", mountThings, 1},
    {"memory", memory, 1},
    {"cpu", burnCpu, 1},
    {"sleep", sleepForever, 1},
    {"fork", forkMany, 1},
    {"three_children", threeChildren, 1},
    {"flood", flood, 2},
    {"big_file", bigFile, 1},
    {"files", openFiles, 1},
    // The extended set.
    {"kill_all", killAll, 1},
    {"user_namespace", userNamespace, 1},
    {"ptrace_agent", ptraceAgent, 1},
    {"agent_memory", agentMemory, 1},
    {"module_load", moduleLoad, 1},
    {"mknod", makeNodes, 1},
    {"setuid_binary", setuidBinary, 1},
    {"raise_rlimits", raiseRlimits, 1},
    {"write_proc_sys", writeProcSys, 1},
    {"sysrq", sysrq, 1},
    {"write_cgroup", writeCgroup, 1},
    {"overwrite_agent_exe", overwriteAgentExe, 1},
    {"inherited_fds", inheritedFds, 1},
    {"daemon", daemonOutlives, 1},
    {"fill_tmp", fillDirectory, 1},
    {"fill_shm", fillDirectory, 1},
    {"core_rlimit", coreRlimit, 1},
    {"io_uring", ioUring, 1},
    {"bpf", bpf, 1},
    {"userfaultfd", userfaultfd, 1},
    {"keyctl", keyctl, 1},
    {"perf_event_open", perfEventOpen, 1},
    {"stop_agent", stopAgent, 1},
    {"steal_descriptors", stealDescriptors, 1},
    {"become_root", becomeRoot, 1},
    {"posture", posture, 1},
    {"memfd_exec", memfdExec, 1},
    {"chroot", chrootBreak, 1},
    {"file_handles", fileHandles, 1},
    {"hard_links", hardLinks, 1},
    {"rename_mounts", renameMounts, 1},
    {"symlink_maze", symlinkMaze, 1},
    {"many_inodes", manyInodes, 1},
    {"sysv_shm", sysvShm, 1},
    {"zombies", zombies, 1},
    {"devices", devices, 1},
    {"system_wide", systemWide, 1},
    {"terminal", terminal, 1},
    {"netlink", netlink, 1},
    {"socket_scan", socketScan, 1},
    {"foreign_abi", foreignAbi, 1},
    // Not hostile: does the sandbox still answer?
    {"alive", alive, 1},
};

int usage() {
  constexpr char kText[] = "usage: escape-programs NAME armed|safe [ARGUMENT]...\n";
  (void)!write(2, kText, sizeof(kText) - 1);
  return kUsageError;
}

int dispatch(int argc, char** argv) {
  if (argc < 3) return usage();
  bool armed = strcmp(argv[2], "armed") == 0;
  if (!armed && strcmp(argv[2], "safe") != 0) return usage();
  for (const Program& program : kPrograms) {
    if (strcmp(program.name, argv[1]) != 0) continue;
    // A reader that is gone must not end a program before its attempt.
    signal(SIGPIPE, SIG_IGN);
    reportTo(program.factFd);
    report({{"begun", 1}});
    program.run(Arguments{armed, argc - 3, argv + 3});
    report({{"done", 1}});
    return 0;
  }
  return usage();
}

}  // namespace
}  // namespace cordon::escape_programs

int main(int argc, char** argv) {
  return cordon::escape_programs::dispatch(argc, argv);
}
