// What the machine itself charges for a program: posix_spawn + wait.
//
//   spawn-floor PROGRAM      a line on stdin: runs PROGRAM once, and answers with
//                            the nanoseconds on stdout; ends at end of file
#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

extern char** environ;

static long long now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

int main(int argc, char** argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: spawn-floor PROGRAM\n");
    return 2;
  }
  char* arguments[] = {argv[1], NULL};
  char line[64];
  while (fgets(line, sizeof line, stdin) != NULL) {
    long long start = now();
    pid_t child;
    int status = 0;
    int error = posix_spawn(&child, argv[1], NULL, NULL, arguments, environ);
    if (error == 0 && waitpid(child, &status, 0) < 0) error = errno;
    long long end = now();
    if (error != 0) {
      printf("error: %s: %s\n", argv[1], strerror(error));
    } else if (status != 0) {
      printf("error: %s ended with wait status %d\n", argv[1], status);
    } else {
      printf("%lld\n", end - start);
    }
    fflush(stdout);
  }
  return 0;
}
