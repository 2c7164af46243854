// What every hostile program is made of: its arguments, and the facts it
// reports.
//
// A program does one hostile thing as hard as it can and reports what happened
// as numbers, never as prose:
//
//   FACT key=number key=number ...\n
//
// one write per line, so that a program killed half way leaves whole lines. Keys
// are [a-z][a-z0-9_]*, numbers decimal. escape_suite/facts.h reads them.
//
// Keys with a meaning of their own:
//   begun=1       the program was entered
//   done=1        it came to its end
//   try_WHAT=E    an attempt that must fail: E is its errno, 0 = it succeeded
//   gate_WHAT=E   a call with a deliberately impossible argument, so that it
//                 harms nothing: EPERM, EACCES and ENOSYS mean that it was
//                 refused at the gate, anything else that it was let through
//
// Programs are finite and clean up after themselves, so that they can be run
// where nothing contains them. What would disturb a machine is only done when
// `armed`; the rest of the time the same right is probed without using it.
#pragma once
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "escape_suite/programs/died_by_signal.h"

namespace cordon::escape_programs {

constexpr long long kMiB = 1 << 20;

struct Fact {
  const char* key;
  long long value;
};

// One line with these facts. At most 16.
void report(std::initializer_list<Fact> facts);
// "PREFIX_WHAT=error", e.g. tried("mount_tmpfs", EPERM).
void tried(const char* what, int error);
void gated(const char* what, int error);

// The facts go to this fd (1 by default).
void reportTo(int fd);

// The errno of a call that answers -1 on failure; 0 when it succeeded.
inline int errorOf(long result) {
  return result < 0 ? errno : 0;
}

// Runs f in a forked child, where what it changes of itself is forgotten with
// it; answers its result (0..999), kDiedBySignal + N, or -1 when there was no
// child to be had.
int inChild(int (*f)(const void*), const void* argument = nullptr);
// The same for a function without an argument.
int inChild(int (*f)());

struct Arguments {
  bool armed;
  int count;
  char** values;

  // The number at `index`, or `otherwise` when there is none or it is none.
  long long number(int index, long long otherwise) const;
  const char* text(int index) const { return index < count ? values[index] : ""; }
};

struct Program {
  const char* name;
  void (*run)(const Arguments&);
  int factFd;
};

// Anonymous memory shared with children, zeroed; null when there is none.
void* sharedMemory(size_t bytes);
// Milliseconds since some fixed time.
long long monotonicMs();
void sleepMs(long long ms);
// Strings without the C library's heavy formatting. Append at *end, keep the
// NUL, never write past `limit`.
char* append(char* end, char* limit, const char* text);
char* appendNumber(char* end, char* limit, long long value);

// Calls f with each numeric name below /proc until it answers false.
void eachProcess(bool (*f)(int pid, void* context), void* context);
// Calls f with each line of a file (without the newline; long ones are cut).
// False when it can't be opened.
bool eachLine(const char* path, void (*f)(const char* line, void* context), void* context);
// Errno of opening `path` without waiting, 0 when that worked; nothing stays open.
int openAndClose(const char* path, int flags);

bool startsWith(const char* text, const char* prefix);

// One line per program: what the table in main.cc names.
// network.cc
void connectOutside(const Arguments&);
void rawSocket(const Arguments&);
void netlink(const Arguments&);
void socketScan(const Arguments&);
// filesystem.cc
void writeOutside(const Arguments&);
void readShadow(const Arguments&);
void hardLinks(const Arguments&);
void renameMounts(const Arguments&);
void fileHandles(const Arguments&);
void symlinkMaze(const Arguments&);
void chrootBreak(const Arguments&);
// mounts.cc
void mountThings(const Arguments&);
// memory.cc
void memory(const Arguments&);
void threeChildren(const Arguments&);
void sysvShm(const Arguments&);
// processes.cc
void forkMany(const Arguments&);
void zombies(const Arguments&);
void daemonOutlives(const Arguments&);
void killAll(const Arguments&);
void alive(const Arguments&);
// time.cc
void burnCpu(const Arguments&);
void sleepForever(const Arguments&);
// files.cc
void flood(const Arguments&);
void bigFile(const Arguments&);
void openFiles(const Arguments&);
void fillDirectory(const Arguments&);
void manyInodes(const Arguments&);
// agent.cc
void ptraceAgent(const Arguments&);
void agentMemory(const Arguments&);
void stopAgent(const Arguments&);
void overwriteAgentExe(const Arguments&);
void stealDescriptors(const Arguments&);
// privileges.cc
void userNamespace(const Arguments&);
void becomeRoot(const Arguments&);
void setuidBinary(const Arguments&);
void raiseRlimits(const Arguments&);
void coreRlimit(const Arguments&);
void posture(const Arguments&);
void memfdExec(const Arguments&);
// kernel.cc
void moduleLoad(const Arguments&);
void makeNodes(const Arguments&);
void devices(const Arguments&);
void writeProcSys(const Arguments&);
void sysrq(const Arguments&);
void writeCgroup(const Arguments&);
void systemWide(const Arguments&);
void terminal(const Arguments&);
// syscalls.cc
void ioUring(const Arguments&);
void bpf(const Arguments&);
void userfaultfd(const Arguments&);
void keyctl(const Arguments&);
void perfEventOpen(const Arguments&);
void foreignAbi(const Arguments&);
// descriptors.cc
void inheritedFds(const Arguments&);

}  // namespace cordon::escape_programs
