#include "escape_suite/programs/program.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cstring>

namespace cordon::escape_programs {
namespace {

constexpr size_t kLineBytes = 1024;

// The one thing that is the program's own for its whole life.
int factFd = 1;

void reportPrefixed(const char* prefix, const char* what, int error) {
  char line[kLineBytes];
  char* limit = line + sizeof(line) - 1;
  char* end = append(line, limit, "FACT ");
  end = append(end, limit, prefix);
  end = append(end, limit, what);
  end = append(end, limit, "=");
  end = appendNumber(end, limit, error);
  *end++ = '\n';
  (void)!write(factFd, line, static_cast<size_t>(end - line));
}

int callWithoutArgument(const void* f) {
  int (*call)() = nullptr;
  memcpy(&call, f, sizeof(call));
  return call();
}

bool parseNumber(const char* text, long long* out) {
  if (*text == '\0') return false;
  long long value = 0;
  for (; *text != '\0'; ++text) {
    if (*text < '0' || *text > '9' || value > 999'999'999'999'999) return false;
    value = value * 10 + (*text - '0');
  }
  *out = value;
  return true;
}

}  // namespace

char* append(char* end, char* limit, const char* text) {
  while (*text != '\0' && end < limit) *end++ = *text++;
  *end = '\0';
  return end;
}

char* appendNumber(char* end, char* limit, long long value) {
  char digits[24];
  size_t n = sizeof(digits) - 1;
  digits[n] = '\0';
  bool negative = value < 0;
  unsigned long long rest = negative ? 0ULL - static_cast<unsigned long long>(value)
                                     : static_cast<unsigned long long>(value);
  do {
    digits[--n] = static_cast<char>('0' + rest % 10);
    rest /= 10;
  } while (rest > 0);
  if (negative) digits[--n] = '-';
  return append(end, limit, digits + n);
}

void reportTo(int fd) {
  factFd = fd;
}

void report(std::initializer_list<Fact> facts) {
  char line[kLineBytes];
  char* limit = line + sizeof(line) - 1;
  char* end = append(line, limit, "FACT");
  for (const Fact& fact : facts) {
    end = append(end, limit, " ");
    end = append(end, limit, fact.key);
    end = append(end, limit, "=");
    end = appendNumber(end, limit, fact.value);
  }
  *end++ = '\n';
  (void)!write(factFd, line, static_cast<size_t>(end - line));
}

void tried(const char* what, int error) {
  reportPrefixed("try_", what, error);
}
void gated(const char* what, int error) {
  reportPrefixed("gate_", what, error);
}

int inChild(int (*f)(const void*), const void* argument) {
  pid_t child = fork();
  if (child < 0) return -1;
  if (child == 0) {
    // A status has eight bits, and errno values stay below 134.
    int result = f(argument);
    _exit(result >= 0 && result < 256 ? result : 255);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return -1;
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : kDiedBySignal + WTERMSIG(status);
}

int inChild(int (*f)()) {
  return inChild(callWithoutArgument, &f);
}

long long Arguments::number(int index, long long otherwise) const {
  long long value = 0;
  return index < count && parseNumber(values[index], &value) ? value : otherwise;
}

void* sharedMemory(size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

long long monotonicMs() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<long long>(now.tv_sec) * 1000 + now.tv_nsec / 1'000'000;
}

void sleepMs(long long ms) {
  timespec left{.tv_sec = ms / 1000, .tv_nsec = (ms % 1000) * 1'000'000};
  while (nanosleep(&left, &left) < 0 && errno == EINTR) {
  }
}

void eachProcess(bool (*f)(int pid, void* context), void* context) {
  DIR* proc = opendir("/proc");
  if (proc == nullptr) return;
  while (dirent* entry = readdir(proc)) {
    long long pid = 0;
    if (!parseNumber(entry->d_name, &pid)) continue;
    if (!f(static_cast<int>(pid), context)) break;
  }
  closedir(proc);
}

bool eachLine(const char* path, void (*f)(const char* line, void* context), void* context) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  char buffer[4096];
  char line[1024];
  size_t length = 0;
  ssize_t n = 0;
  while ((n = read(fd, buffer, sizeof(buffer))) > 0) {
    for (ssize_t i = 0; i < n; ++i) {
      if (buffer[i] == '\n') {
        line[length] = '\0';
        f(line, context);
        length = 0;
      } else if (length < sizeof(line) - 1) {
        line[length++] = buffer[i];
      }
    }
  }
  close(fd);
  return true;
}

int openAndClose(const char* path, int flags) {
  int fd = open(path, flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  int error = errorOf(fd);
  if (fd >= 0) close(fd);
  return error;
}

bool startsWith(const char* text, const char* prefix) {
  return strncmp(text, prefix, strlen(prefix)) == 0;
}

}  // namespace cordon::escape_programs
