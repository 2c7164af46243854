// What the kernel itself charges for a container like a `jail`, by hand: every
// namespace, the same mounts, cgroups with limits and their joins, a seccomp
// filter, exec of a static program that writes one byte, and all of it gone
// again. One process, no plan, no checks, nothing recorded.
//
//   clone-floor ROOTFS FILTER PROGRAM MASKED...
//     ROOTFS   an image's skeleton; FILTER a file of struct sock_filter[];
//     PROGRAM  writes one byte to its fd 0; MASKED below the root, where it exists
//
// A line on stdin, an answer in nanoseconds on stdout ("error: …" on failure):
//   cold          from nothing to the byte, SIGKILL, until nothing is left
//   first-byte    of the last `cold`: until the byte
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/mount.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <net/if.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

// Of <sched.h> and <sys/mount.h>, which can't be included beside the kernel's.
int unshare(int flags);
int umount2(const char* target, int flags);
#define FLOOR_MNT_DETACH 2
#define FLOOR_PRIVATE (1 << 18)

#define CONTAINED (CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNET)
enum { kFirstId = 1946222592, kIds = 65536, kAgent = 65000, kMostFds = 8 };

static char** g_masked;
static const char* g_rootfs;
static int g_program, g_filter;

// The step that failed, for the answer: in shared memory, since most are the child's.
static struct {
  const char* step;
  int error;
} * g_failure;

static long must(const char* step, long result) {
  if (result >= 0) return result;
  g_failure->step = step;
  g_failure->error = errno;
  _exit(1);
}

static long long now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

// ---- cgroups

static const char* const kTree[] = {"floor", "floor/agent", "floor/work", "floor/work/exec-1"};
enum { kTreeSize = sizeof kTree / sizeof *kTree };
static char g_names[4][64];  // a directory in each hierarchy, for as long as we live
static int g_bases[4], g_baseCount, g_v2;

static void findHierarchies(void) {
  g_v2 = access("/sys/fs/cgroup/cgroup.controllers", F_OK) == 0;
  const char* const v1[] = {"/memory", "/pids", "/cpu", "/cpuacct"};
  for (int i = 0; i < (g_v2 ? 1 : 4); ++i) {
    char* name = g_names[g_baseCount];
    snprintf(name, sizeof *g_names, "/sys/fs/cgroup%s/cordon-bench", g_v2 ? "" : v1[i]);
    if (mkdir(name, 0755) < 0 && errno != EEXIST) continue;
    g_bases[g_baseCount++] = (int)must(name, open(name, O_PATH | O_DIRECTORY | O_CLOEXEC));
  }
}

static void put(int base, const char* path, const char* text) {
  int fd = openat(base, path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return;  // of another controller
  ssize_t ignored = write(fd, text, strlen(text));
  (void)ignored;
  close(fd);
}

// Returns how many descriptors the child joins by (v1), or 1: where it is born.
static int makeCgroups(int fds[kMostFds]) {
  static const char* const kLimits[][2] = {{"floor/work/memory.limit_in_bytes", "536870912"},
                                           {"floor/work/memory.swappiness", "0"},
                                           {"floor/work/pids.max", "256"},
                                           {"floor/work/cpu.cfs_period_us", "100000"},
                                           {"floor/work/cpu.cfs_quota_us", "100000"},
                                           {"floor/agent/memory.limit_in_bytes", "201326592"},
                                           {"floor/agent/memory.swappiness", "0"},
                                           {"floor/agent/pids.max", "96"},
                                           {"floor/agent/cpu.shares", "2048"},
                                           {"floor/work/exec-1/pids.max", "256"},
                                           {NULL, NULL}};
  static const char* const kLimits2[][2] = {{"floor/work/memory.max", "536870912"},
                                            {"floor/work/memory.swap.max", "0"},
                                            {"floor/work/pids.max", "256"},
                                            {"floor/work/cpu.max", "100000 100000"},
                                            {"floor/agent/memory.max", "201326592"},
                                            {"floor/agent/pids.max", "96"},
                                            {"floor/agent/cpu.weight", "200"},
                                            {"floor/work/exec-1/pids.max", "256"},
                                            {NULL, NULL}};
  static const char kOn[] = "+memory +pids +cpu";
  if (g_v2) {
    put(g_bases[0], "../cgroup.subtree_control", kOn);
    put(g_bases[0], "cgroup.subtree_control", kOn);
  }
  for (int h = 0; h < g_baseCount; ++h) {
    for (int i = 0; i < kTreeSize; ++i) {
      must("mkdir of a cgroup", mkdirat(g_bases[h], kTree[i], 0755));
      if (g_v2 && i == 0) put(g_bases[h], "floor/cgroup.subtree_control", kOn);
      if (g_v2 && i == 2) put(g_bases[h], "floor/work/cgroup.subtree_control", kOn);
    }
    for (const char* const(*limit)[2] = g_v2 ? kLimits2 : kLimits; (*limit)[0] != NULL; ++limit) {
      put(g_bases[h], (*limit)[0], (*limit)[1]);
    }
    const char* joined = g_v2 ? "floor/agent" : "floor/agent/tasks";
    fds[h] = (int)must("open of a cgroup",
                       openat(g_bases[h], joined, (g_v2 ? O_PATH : O_WRONLY) | O_CLOEXEC));
  }
  return g_baseCount;
}

static void removeCgroups(void) {
  for (int h = 0; h < g_baseCount; ++h) {
    for (int i = kTreeSize - 1; i >= 0; --i) {
      // The init's end is seen a moment before its cgroup is empty.
      while (unlinkat(g_bases[h], kTree[i], AT_REMOVEDIR) < 0 && errno == EBUSY) {
      }
    }
  }
}

// ---- the container's side

static int newMount(const char* type, const char* const* options, unsigned flags) {
  int context = (int)must(type, syscall(SYS_fsopen, type, FSOPEN_CLOEXEC));
  for (; options != NULL && options[0] != NULL; options += 2) {
    int flag = options[1][0] == '\0';
    must(options[0], syscall(SYS_fsconfig, context, flag ? FSCONFIG_SET_FLAG : FSCONFIG_SET_STRING,
                             options[0], flag ? NULL : options[1], 0));
  }
  must(type, syscall(SYS_fsconfig, context, FSCONFIG_CMD_CREATE, NULL, NULL, 0));
  int made = (int)must(type, syscall(SYS_fsmount, context, FSMOUNT_CLOEXEC, flags));
  close(context);
  return made;
}

static void attach(int mount, int root, const char* where) {
  must(where, syscall(SYS_move_mount, mount, "", root, where, MOVE_MOUNT_F_EMPTY_PATH));
  close(mount);
}

static void setFlags(int mount, uint64_t flags) {
  struct mount_attr attributes = {.attr_set = flags};
  must("mount_setattr",
       syscall(SYS_mount_setattr, mount, "", AT_EMPTY_PATH, &attributes, sizeof attributes));
}

static int copyOf(int at, const char* path) {
  return (int)must(path, syscall(SYS_open_tree, at, path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC));
}

static void buildRoot(int root) {
  enum { kPlain = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, kData = kPlain | MOUNT_ATTR_NOEXEC };
  struct mount_attr attributes = {.propagation = FLOOR_PRIVATE};
  must("private",
       syscall(SYS_mount_setattr, AT_FDCWD, "/", AT_RECURSIVE, &attributes, sizeof attributes));
  must("root", syscall(SYS_move_mount, root, "", AT_FDCWD, "/", MOVE_MOUNT_F_EMPTY_PATH));

  attach(newMount("proc", (const char*[]){"hidepid", "invisible", NULL}, kData), root, "proc");
  attach(newMount("sysfs", NULL, kData | MOUNT_ATTR_RDONLY), root, "sys");
  int dev = newMount(
      "tmpfs", (const char*[]){"mode", "755", "size", "65536", "nr_inodes", "64", NULL}, kData);
  must("dev", syscall(SYS_move_mount, dev, "", root, "dev", MOVE_MOUNT_F_EMPTY_PATH));
  static const char* const kDevices[] = {"null", "zero", "full", "random", "urandom", "tty"};
  for (int i = 0; i < 6; ++i) {
    char path[32];
    snprintf(path, sizeof path, "/dev/%s", kDevices[i]);
    int device = copyOf(AT_FDCWD, path);
    setFlags(device, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC);
    must(path, mknodat(dev, kDevices[i], S_IFREG | 0644, 0));
    attach(device, dev, kDevices[i]);
  }
  must("dev/pts", mkdirat(dev, "pts", 0755));
  attach(
      newMount("devpts",
               (const char*[]){"newinstance", "", "ptmxmode", "0666", "mode", "0620", NULL}, kData),
      dev, "pts");
  static const char* const kLinks[][2] = {{"/proc/self/fd", "fd"},
                                          {"/proc/self/fd/0", "stdin"},
                                          {"/proc/self/fd/1", "stdout"},
                                          {"/proc/self/fd/2", "stderr"},
                                          {"pts/ptmx", "ptmx"}};
  for (int i = 0; i < 5; ++i) must(kLinks[i][1], symlinkat(kLinks[i][0], dev, kLinks[i][1]));
  must("dev/shm", mkdirat(dev, "shm", 0755));
  const char* const scratch[] = {"mode", "1777", "size", "67108864", "nr_inodes", "16384", NULL};
  attach(newMount("tmpfs", scratch, kData), dev, "shm");
  attach(newMount("tmpfs", scratch, kPlain), root, "tmp");
  attach(newMount("tmpfs", scratch, kPlain), root, "work");

  static const char* const kReadOnly[] = {"proc/bus", "proc/fs", "proc/irq", "proc/sys",
                                          "proc/sysrq-trigger"};
  for (int i = 0; i < 5; ++i) {
    if (faccessat(root, kReadOnly[i], F_OK, 0) < 0) continue;
    int copy = copyOf(root, kReadOnly[i]);
    setFlags(copy, kData | MOUNT_ATTR_RDONLY);
    attach(copy, root, kReadOnly[i]);
  }
  int empty = -1;
  for (char** path = g_masked; *path != NULL; ++path) {
    struct stat status;
    if (fstatat(root, *path, &status, 0) < 0) continue;
    if (S_ISDIR(status.st_mode)) {
      if (empty < 0) empty = newMount("tmpfs", NULL, kData | MOUNT_ATTR_RDONLY);
      int copy = (int)must("mask", syscall(SYS_open_tree, empty, "",
                                           AT_EMPTY_PATH | OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC));
      attach(copy, root, *path);
    } else {
      int null = copyOf(AT_FDCWD, "/dev/null");
      setFlags(null, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC);
      attach(null, root, *path);
    }
  }
  setFlags(dev, kData | MOUNT_ATTR_RDONLY);
}

static void networkUp(void) {
  int fd = (int)must("socket", socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  struct ifreq request = {.ifr_name = "lo"};
  request.ifr_flags = IFF_UP;
  must("lo", ioctl(fd, SIOCSIFFLAGS, &request));
  close(fd);
  int sysctl = (int)must(
      "sysctl", open("/proc/sys/net/ipv4/ip_unprivileged_port_start", O_WRONLY | O_CLOEXEC));
  must("sysctl", write(sysctl, "0", 1));
  close(sysctl);
}

static void dropAll(int sync) {
  // The parent writes the maps meanwhile.
  must("user namespace", unshare(CLONE_NEWUSER));
  char byte = 1;
  must("sync", write(sync, &byte, 1));
  must("sync", read(sync, &byte, 1));
  must("setgroups", syscall(SYS_setgroups, 0, NULL));
  must("setresgid", syscall(SYS_setresgid, kAgent, kAgent, kAgent));
  must("setresuid", syscall(SYS_setresuid, kAgent, kAgent, kAgent));
  uint32_t kept = 1u << CAP_KILL | 1u << CAP_SETGID | 1u << CAP_SETUID;
  for (int c = 0; prctl(PR_CAPBSET_READ, c, 0, 0, 0) >= 0; ++c) {
    if (c > 31 || !(kept & 1u << c)) must("bounding set", prctl(PR_CAPBSET_DROP, c, 0, 0, 0));
  }
  struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  struct __user_cap_data_struct data[2] = {{kept, kept, kept}, {0, 0, 0}};
  must("capset", syscall(SYS_capset, &header, data));
  must("no_new_privs", prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
  static struct sock_filter program[BPF_MAXINSNS];
  long size = must("filter", pread(g_filter, program, sizeof program, 0));
  struct sock_fprog filter = {(unsigned short)((size_t)size / sizeof *program), program};
  must("seccomp", syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter));
}

static void contained(int root, const int* cgroups, int count, int sync, int control) {
  if (!g_v2) {
    for (int i = 0; i < count; ++i) must("join", write(cgroups[i], "0", 1));
    must("cgroup namespace", unshare(CLONE_NEWCGROUP));
  }
  must("setsid", setsid());
  networkUp();
  buildRoot(root);
  must("hostname", sethostname("floor", 5));
  must("root", fchdir(root));
  must("pivot_root", syscall(SYS_pivot_root, ".", "."));
  must("old root", umount2(".", FLOOR_MNT_DETACH));
  must("chdir", chdir("/"));
  dropAll(sync);
  must("control", dup2(control, 0));
  must("close", syscall(SYS_close_range, 1u, ~0u, CLOSE_RANGE_CLOEXEC));
  char* argv[] = {(char*)"floor", NULL};
  char* env[] = {NULL};
  must("exec", syscall(SYS_execveat, g_program, "", argv, env, AT_EMPTY_PATH));
}

// ---- the host's side

static void writeMap(pid_t pid, const char* name) {
  char path[64], text[64];
  snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
  int size = snprintf(text, sizeof text, "0 %u %u\n", kFirstId, kIds);
  int fd = (int)must(path, open(path, O_WRONLY | O_CLOEXEC));
  must(path, write(fd, text, (size_t)size));
  close(fd);
}

static int cold(long long* whole, long long* firstByte) {
  g_failure->step = NULL;
  long long start = now();
  int cgroups[kMostFds], control[2], sync[2];
  int count = makeCgroups(cgroups);
  must("socketpair", socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, control));
  must("socketpair", socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sync));
  int root = (int)must("image", syscall(SYS_open_tree, AT_FDCWD, g_rootfs,
                                        OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE));
  struct clone_args arguments = {.flags = CONTAINED, .exit_signal = SIGCHLD};
  if (g_v2) {
    arguments.flags |= CLONE_INTO_CGROUP | CLONE_NEWCGROUP;
    arguments.cgroup = (unsigned)cgroups[0];
  }
  pid_t pid = (pid_t)must("clone3", syscall(SYS_clone3, &arguments, sizeof arguments));
  if (pid == 0) {
    close(control[0]);
    close(sync[0]);
    contained(root, cgroups, count, sync[1], control[1]);
  }
  close(control[1]);
  close(sync[1]);
  close(root);
  for (int i = 0; i < count; ++i) close(cgroups[i]);
  char byte;
  if (read(sync[0], &byte, 1) == 1) {
    writeMap(pid, "uid_map");
    writeMap(pid, "gid_map");
    must("sync", write(sync[0], &byte, 1));
  }
  int began = read(control[0], &byte, 1) == 1;
  *firstByte = now() - start;
  must("kill", kill(pid, SIGKILL));
  must("wait", waitpid(pid, NULL, 0));
  close(control[0]);
  close(sync[0]);
  removeCgroups();
  *whole = now() - start;
  return began;
}

int main(int argc, char** argv) {
  if (argc < 4) {
    fprintf(stderr, "usage: clone-floor ROOTFS FILTER PROGRAM MASKED...\n");
    return 2;
  }
  g_failure = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (g_failure == MAP_FAILED) return 1;
  g_rootfs = argv[1];
  g_filter = (int)must("filter", open(argv[2], O_RDONLY | O_CLOEXEC));
  g_program = (int)must("program", open(argv[3], O_PATH | O_CLOEXEC));
  g_masked = argv + 4;
  findHierarchies();
  char line[64];
  long long whole = 0, firstByte = 0;
  while (fgets(line, sizeof line, stdin) != NULL) {
    if (strcmp(line, "first-byte\n") == 0) {
      printf("%lld\n", firstByte);
    } else if (cold(&whole, &firstByte)) {
      printf("%lld\n", whole);
    } else {
      printf("error: %s: %s\n", g_failure->step ? g_failure->step : "no byte",
             strerror(g_failure->error));
    }
    fflush(stdout);
  }
  for (int h = 0; h < g_baseCount; ++h) rmdir(g_names[h]);
  return 0;
}
