// Output without end, big files, many files, full directories.
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "escape_suite/programs/program.h"

namespace cordon::escape_programs {
namespace {

constexpr long long kMostDescriptors = 200'000;

// Static: a mebibyte is too much for a stack that a limit may have shrunk.
char block[kMiB];

long long sizeOf(int fd) {
  struct stat status {};
  return fstat(fd, &status) == 0 ? static_cast<long long>(status.st_size) : 0;
}

// Writes until `wanted` bytes or the first refusal, whose errno is the answer.
int writeUntil(int fd, long long wanted, long long* written) {
  while (*written < wanted) {
    long long next = wanted - *written < kMiB ? wanted - *written : kMiB;
    ssize_t n = write(fd, block, static_cast<size_t>(next));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    *written += n;
  }
  return 0;
}

// Every way to make a file big; the size reached is what counts.
long long biggestByTricks(const char* path, long long wanted) {
  int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return 0;
  long long biggest = 0;
  if (ftruncate(fd, static_cast<off_t>(wanted)) == 0) biggest = sizeOf(fd);
  if (biggest == 0 && fallocate(fd, 0, 0, static_cast<off_t>(wanted)) == 0) biggest = sizeOf(fd);
  (void)!pwrite(fd, block, 1, static_cast<off_t>(wanted - 1));
  if (sizeOf(fd) > biggest) biggest = sizeOf(fd);
  close(fd);
  unlink(path);
  return biggest;
}

}  // namespace

// flood BYTES: the facts are on stderr.
void flood(const Arguments& arguments) {
  long long wanted = arguments.number(0, 64 * kMiB);
  memset(block, 'x', sizeof(block));
  long long written = 0;
  int error = writeUntil(1, wanted, &written);
  report({{"written", written}, {"wanted", wanted}, {"error", error}});
}

// big_file BYTES
void bigFile(const Arguments& arguments) {
  long long wanted = arguments.number(0, 200 * kMiB);
  // First with the signal ignored, as some interpreters do: then there is only
  // an errno. Then with it, so that the kernel says what happened.
  signal(SIGXFSZ, SIG_IGN);
  report({{"by_tricks", biggestByTricks("./big-tricks", wanted)}});
  int fd = open("./big-file", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) {
    report({{"open", errno}});
    return;
  }
  // Its name stays: a signal alone could be one that the program sent to itself,
  // and a file that stands exactly at the limit tells the two apart.
  long long written = 0;
  int error = writeUntil(fd, wanted, &written);
  report({{"size", sizeOf(fd)}, {"wanted", wanted}, {"error", error}});
  signal(SIGXFSZ, SIG_DFL);
  (void)!write(fd, block, 1);
}

// files COUNT
void openFiles(const Arguments& arguments) {
  long long wanted = arguments.number(0, kMostDescriptors);
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  long long before = static_cast<long long>(limit.rlim_max);
  rlimit more{.rlim_cur = static_cast<rlim_t>(wanted) + 64,
              .rlim_max = static_cast<rlim_t>(wanted) + 64};
  int raised = errorOf(setrlimit(RLIMIT_NOFILE, &more));
  if (raised != 0) {
    more = {.rlim_cur = limit.rlim_max, .rlim_max = limit.rlim_max};
    setrlimit(RLIMIT_NOFILE, &more);
  }
  long long highest = -1;
  long long opened = 0;
  int error = 0;
  for (; opened < wanted; ++opened) {
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
      error = errno;
      break;
    }
    highest = fd;
  }
  report({{"opened", opened},
          {"highest", highest},
          {"error", error},
          {"hard_limit", before},
          {"raise", raised}});
}

// fill_tmp|fill_shm DIRECTORY BYTES
void fillDirectory(const Arguments& arguments) {
  constexpr long long kFile = 4 * kMiB;
  memset(block, 'x', sizeof(block));
  long long wanted = arguments.number(1, 64 * kMiB);
  long long written = 0;
  int error = 0;
  for (int i = 0; written < wanted && error == 0; ++i) {
    char path[256];
    char* limit = path + sizeof(path) - 1;
    char* end = append(append(path, limit, arguments.text(0)), limit, "/cordon-fill-");
    end = append(appendNumber(end, limit, getpid()), limit, "-");
    appendNumber(end, limit, i);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) {
      error = errno;
      break;
    }
    // In a sandbox it stays, to see whether others can still live there.
    if (!arguments.armed) unlink(path);
    long long inThis = 0;
    error = writeUntil(fd, kFile, &inThis);
    written += inThis;
    report({{"written", written}});
    if (arguments.armed) close(fd);
  }
  report({{"written", written}, {"wanted", wanted}, {"error", error}});
}

// many_inodes COUNT
void manyInodes(const Arguments& arguments) {
  long long wanted = arguments.armed ? arguments.number(0, 300'000) : 100;
  long long made = 0;
  int error = 0;
  mkdir("./inodes", 0700);
  char path[64];
  for (; made < wanted; ++made) {
    appendNumber(append(path, path + sizeof(path) - 1, "./inodes/"), path + sizeof(path) - 1, made);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) {
      error = errno;
      break;
    }
    close(fd);
    if (!arguments.armed) unlink(path);
    if (made % 4096 == 4095) report({{"made", made + 1}});
  }
  report({{"made", made}, {"wanted", wanted}, {"error", error}});
  if (!arguments.armed) rmdir("./inodes");
}

}  // namespace cordon::escape_programs
