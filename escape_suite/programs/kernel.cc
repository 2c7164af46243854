// The machine itself: modules, devices, settings, the cgroup file system, the
// clock. Everything here that could disturb is asked with an impossible
// argument, which the kernel looks at only after the caller's rights.
#include <dirent.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/klog.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/swap.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/timex.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include <cstring>

#include "escape_suite/programs/program.h"

namespace cordon::escape_programs {
namespace {

// Files that are masked read as empty; a byte means that they are not.
int readByte(const char* path) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return errno;
  char byte = 0;
  ssize_t n = read(fd, &byte, 1);
  int error = n == 0 ? ENODATA : errorOf(n);
  close(fd);
  return error;
}

int makeNode(mode_t mode, unsigned major, unsigned minor) {
  unlink("./node");
  int error = errorOf(mknod("./node", mode | 0600, makedev(major, minor)));
  unlink("./node");
  return error;
}

struct Mounts {
  int cgroups, writable;
};

// "ID PARENT MAJ:MIN ROOT MOUNTPOINT OPTIONS ... - TYPE SOURCE SUPER"
void tryCgroupMount(const char* line, void* context) {
  auto* mounts = static_cast<Mounts*>(context);
  if (strstr(line, " - cgroup") == nullptr) return;
  mounts->cgroups++;
  const char* point = line;
  for (int i = 0; i < 4 && point != nullptr; ++i) {
    point = strchr(point, ' ');
    if (point != nullptr) ++point;
  }
  const char* end = point == nullptr ? nullptr : strchr(point, ' ');
  char path[512];
  if (end == nullptr || static_cast<size_t>(end - point) > sizeof(path) - 64) return;
  size_t length = static_cast<size_t>(end - point);
  memcpy(path, point, length);
  const char* const names[] = {"/cgroup.procs",          "/tasks",      "/release_agent",
                               "/memory.limit_in_bytes", "/memory.max", "/pids.max",
                               "/cgroup.subtree_control"};
  for (const char* name : names) {
    append(path + length, path + sizeof(path) - 1, name);
    mounts->writable += openAndClose(path, O_WRONLY) == 0;
  }
}

}  // namespace

void moduleLoad(const Arguments&) {
  char garbage[64] = "not a module";
  gated("init_module", errorOf(syscall(SYS_init_module, garbage, sizeof(garbage), "")));
  int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  gated("finit_module", errorOf(syscall(SYS_finit_module, fd, "", 0)));
  if (fd >= 0) close(fd);
  gated("delete_module", errorOf(syscall(SYS_delete_module, "cordon_no_such_module", O_NONBLOCK)));
  // More segments than there may be: an empty list would unload what is loaded.
  gated("kexec_load", errorOf(syscall(SYS_kexec_load, 0UL, 1000UL, nullptr, 0UL)));
}

void makeNodes(const Arguments&) {
  tried("null", makeNode(S_IFCHR, 1, 3));
  tried("mem", makeNode(S_IFCHR, 1, 1));
  tried("kmsg", makeNode(S_IFCHR, 1, 11));
  tried("disk_sda", makeNode(S_IFBLK, 8, 0));
  tried("disk_vda", makeNode(S_IFBLK, 254, 0));
  tried("loop0", makeNode(S_IFBLK, 7, 0));
  // A whiteout of overlayfs is a device too.
  report({{"whiteout", makeNode(S_IFCHR, 0, 0)}});
}

void devices(const Arguments&) {
  const char* const wanted[] = {
      "mem",           "kmem",    "port",         "kmsg",        "kvm",
      "fuse",          "net/tun", "loop-control", "loop0",       "sda",
      "vda",           "nvme0n1", "vhost-net",    "vhost-vsock", "mapper/control",
      "btrfs-control", "hpet",    "uinput",       "autofs"};
  for (const char* name : wanted) {
    char path[64];
    char* limit = path + sizeof(path) - 1;
    append(append(path, limit, "/dev/"), limit, name);
    tried("open", openAndClose(path, O_RDONLY));
  }
  // Anything beyond what a program needs.
  const char* const basic[] = {"null",    "zero", "full", "random",
                               "urandom", "tty",  "ptmx", "console"};
  int beyond = 0;
  int nodes = 0;
  DIR* directory = opendir("/dev");
  while (dirent* entry = directory == nullptr ? nullptr : readdir(directory)) {
    struct stat status {};
    if (fstatat(dirfd(directory), entry->d_name, &status, AT_SYMLINK_NOFOLLOW) < 0) continue;
    if (!S_ISCHR(status.st_mode) && !S_ISBLK(status.st_mode)) continue;
    ++nodes;
    bool known = false;
    for (const char* name : basic) known = known || strcmp(name, entry->d_name) == 0;
    beyond += !known;
  }
  if (directory != nullptr) closedir(directory);
  report({{"nodes", nodes}, {"beyond", beyond}});
}

void writeProcSys(const Arguments&) {
  const char* const files[] = {"kernel/core_pattern",
                               "kernel/modprobe",
                               "kernel/hostname",
                               "kernel/domainname",
                               "kernel/panic",
                               "kernel/pid_max",
                               "kernel/randomize_va_space",
                               "kernel/yama/ptrace_scope",
                               "kernel/unprivileged_bpf_disabled",
                               "kernel/shmmax",
                               "vm/overcommit_memory",
                               "vm/swappiness",
                               "fs/file-max",
                               "fs/protected_hardlinks",
                               "fs/mqueue/msg_max",
                               "net/ipv4/ip_forward",
                               "net/ipv4/ping_group_range",
                               "user/max_user_namespaces"};
  for (const char* name : files) {
    char path[128];
    char* limit = path + sizeof(path) - 1;
    append(append(path, limit, "/proc/sys/"), limit, name);
    tried("sysctl", openAndClose(path, O_RDWR));
  }
  tried("uevent_helper", openAndClose("/sys/kernel/uevent_helper", O_WRONLY));
  tried("binfmt", openAndClose("/proc/sys/fs/binfmt_misc/register", O_WRONLY));
  tried("kcore", readByte("/proc/kcore"));
  tried("keys", readByte("/proc/keys"));
  tried("timer_list", readByte("/proc/timer_list"));
  tried("uid_map", openAndClose("/proc/1/uid_map", O_WRONLY));
}

void sysrq(const Arguments&) {
  // Never written to: being able to is enough.
  tried("trigger", openAndClose("/proc/sysrq-trigger", O_WRONLY));
  tried("setting", openAndClose("/proc/sys/kernel/sysrq", O_WRONLY));
}

void writeCgroup(const Arguments&) {
  Mounts mounts{};
  bool readable = eachLine("/proc/self/mountinfo", tryCgroupMount, &mounts);
  report({{"readable", readable}, {"mounts", mounts.cgroups}, {"writable", mounts.writable}});
  tried("cgroup_files", mounts.writable == 0 ? ENOENT : 0);
  const char* const guesses[] = {
      "/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/pids/tasks", "/sys/fs/cgroup/memory/tasks",
      "/sys/fs/cgroup/memory/release_agent", "/sys/fs/cgroup/unified/cgroup.procs"};
  for (const char* path : guesses) tried("guess", openAndClose(path, O_WRONLY));
}

void systemWide(const Arguments& arguments) {
  timex clock{};
  clock.modes = ADJ_TICK;
  clock.tick = 1;  // far outside what is accepted
  gated("adjtimex", errorOf(adjtimex(&clock)));
  gated("swapon", errorOf(swapon("./no-such-file", 0)));
  gated("swapoff", errorOf(swapoff("./no-such-file")));
  gated("acct", errorOf(acct("./no-such-directory/file")));
  gated("reboot", errorOf(syscall(SYS_reboot, 1, 2, 3, nullptr)));
  char name[128] = "cordon";
  gated("sethostname", errorOf(sethostname(name, sizeof(name))));
  gated("setdomainname", errorOf(setdomainname(name, sizeof(name))));
  gated("iopl", errorOf(syscall(SYS_iopl, 7)));
  char line[16];
  tried("kernel_log", errorOf(klogctl(3, line, sizeof(line))));
  if (arguments.armed) {
    timespec now{};
    clock_gettime(CLOCK_REALTIME, &now);
    tried("clock_settime", errorOf(clock_settime(CLOCK_REALTIME, &now)));
    tried("sethostname", errorOf(sethostname("escaped", 7)));
    tried("vhangup", errorOf(syscall(SYS_vhangup)));
    gated("quotactl", errorOf(syscall(SYS_quotactl, 0x80000200, "/dev/sda", 0, nullptr)));
  }
}

void terminal(const Arguments& arguments) {
  int error = openAndClose("/dev/tty", O_RDWR);
  tried("controlling_terminal", error);
  tried("console", openAndClose("/dev/console", O_WRONLY));
  tried("virtual_console", openAndClose("/dev/tty1", O_WRONLY));
  if (!arguments.armed) return;
  char byte = '\n';
  for (int fd = 0; fd < 3; ++fd) tried("push_input", errorOf(ioctl(fd, TIOCSTI, &byte)));
}

}  // namespace cordon::escape_programs
