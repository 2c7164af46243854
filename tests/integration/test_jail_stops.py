"""SIGKILL between any two steps of cordon-jailer, of it and of the broker behind it.

The jailer is the one of jailer/stops_testing.cc, which stops for good behind a
step of docs/jailer.md and says so in its name.
"""
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile

import pytest

import support
from stops import STEPS, STOPS, Stops
from support import Refused, wait_until

pytestmark = pytest.mark.skipif(not STOPS.exists(), reason="the test build of the jailer is not here")


@pytest.fixture(scope="module")
def stops():
    with Stops() as it:
        yield it


def expect_refused(acquiring, reason):
    out, err = acquiring.communicate(timeout=support.PATIENCE)
    assert acquiring.returncode != 0 and reason in err.decode(), (out, err)


@pytest.mark.parametrize("step", STEPS)
def test_the_jailer_is_killed_behind_a_step(stops, step):
    stops.stop_after(step)
    acquiring = stops.begin()
    pid = stops.stopped(step)
    os.kill(pid, signal.SIGKILL)
    expect_refused(acquiring, "RUNTIME_FAILED")
    stops.expect_nothing_left()
    stops.expect_a_good_one()


def stop_at_each(stops, steps):
    """A sandbox in the making for each step; (its call, its process)."""
    begun = []
    for step in steps:
        stops.stop_after(step)
        acquiring = stops.begin()
        begun.append((acquiring, stops.stopped(step)))
    stops.stop_after(None)
    return begun


def expect_ended(begun, reason=""):
    for acquiring, pid in begun:
        expect_refused(acquiring, reason)
        wait_until(lambda: support.process_state(pid) in ("", "Z"),
                   f"it is killed: {support.describe_process(pid)}")


def test_the_broker_is_killed_while_jailers_stand_behind_every_step(stops):
    """All at once, since each restart of the broker waits longer than the last."""
    begun = stop_at_each(stops, STEPS)
    first = stops.instance.broker
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: stops.instance.broker != first, "another broker")
    expect_ended(begun, "BROKER_LOST")
    stops.expect_nothing_left()
    wait_until(lambda: stops.instance.cordon("run", "--", "true").status == 0, "it serves")
    stops.expect_nothing_left()


def test_sigterm_while_jailers_stand(stops):
    """Before it is in any cgroup, and as pid 1: killed when its time is up."""
    begun = stop_at_each(stops, [2, 8])
    stops.instance.stop()
    stops.instance.start()
    expect_ended(begun)
    stops.expect_a_good_one()


# ---------------------------------------------------------------- before any system call

# In the jailer's place: runs the real one under a tracer that kills whoever makes
# the call of the number in `kill-at`. How many there are stands in `calls` after
# a run to the end.
TRACER = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
static char here[4096];
static const char* beside(const char* name) {
  static char path[4200];
  snprintf(path, sizeof path, "%s/%s", here, name);
  return path;
}
static int trace(pid_t target, int ready, long at) {
  long calls = 0, execs = 0;
  int options = PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_TRACEFORK |
                PTRACE_O_TRACEVFORK | PTRACE_O_TRACEEXEC;
  if (ptrace(PTRACE_SEIZE, target, 0, options) || ptrace(PTRACE_INTERRUPT, target, 0, 0)) return 1;
  syscall(SYS_write, ready, "x", 1);
  syscall(SYS_close_range, 0, ~0u, 0);
  for (int status, pid; (pid = waitpid(-1, &status, __WALL)) > 0;) {
    if (!WIFSTOPPED(status)) continue;
    int sig = WSTOPSIG(status), event = status >> 16;
    if (event == PTRACE_EVENT_EXEC && ++execs == 2) {  /* the agent */
      FILE* file = fopen(beside("calls"), "w");
      if (file) { fprintf(file, "%ld", calls); fclose(file); }
      return 0;  /* the rest goes on untraced */
    }
    if (sig == (SIGTRAP | 0x80)) {
      struct __ptrace_syscall_info info;
      ptrace(PTRACE_GET_SYSCALL_INFO, pid, sizeof info, &info);
      if (execs == 1 && info.op == PTRACE_SYSCALL_INFO_ENTRY && ++calls == at) {
        kill(pid, SIGKILL);
        return 0;
      }
    }
    ptrace(PTRACE_SYSCALL, pid, 0, event || sig == (SIGTRAP | 0x80) || sig == SIGTRAP ? 0 : sig);
  }
  return 0;
}
int main(void) {
  ssize_t length = readlink("/proc/self/exe", here, sizeof here - 1);
  if (length <= 0) return 1;
  *strrchr(here, '/') = 0;
  FILE* file = fopen(beside("kill-at"), "r");
  long at = 0;
  char byte;
  int ready[2];
  if (file && fscanf(file, "%ld", &at) == 1) {
    fclose(file);
    if (pipe(ready)) return 1;
    pid_t parent = getpid();
    if (fork() == 0) _exit(trace(parent, ready[1], at));
    close(ready[1]);
    if (read(ready[0], &byte, 1) != 1) return 1;
    close(ready[0]);
  }
  char* none[] = {NULL};
  char* arguments[] = {"cordon-jailer", NULL};
  execve(beside("real-jailer"), arguments, none);
  return 1;
}
"""
EACH = int(os.environ.get("CORDON_TEST_EACH_CALL", "17"))  # 1: really every one


def test_killed_before_a_system_call(stops):
    libexec = stops.libexec
    subprocess.run(["cc", "-static", "-O1", "-w", "-x", "c", "-", "-o", libexec / "tracer"],
                   input=TRACER.encode(), check=True, timeout=60)
    shutil.copy(support.LIBEXEC / "cordon-jailer", libexec / "real-jailer")
    # By rename: nobody runs a half of it.
    os.rename(libexec / "cordon-jailer", libexec / "stops-jailer")
    os.rename(libexec / "tracer", libexec / "cordon-jailer")
    at, outcomes = libexec / "kill-at", []
    try:
        with support.Api(stops.instance.address) as api:
            def outcome(number):
                at.write_text(str(number))
                try:
                    acquired = api.acquire()
                except Refused as refused:
                    assert refused.reason == "RUNTIME_FAILED", (number, refused)
                    return False
                assert api.exec(acquired.id, ["true"]).result.exit_code == 0
                assert api.release(acquired.id).receipt.complete
                return True

            assert outcome(1 << 30), "nobody is killed"
            calls = int((libexec / "calls").read_text())
            assert calls > 150
            for number in range(1, calls + 1, EACH):
                outcomes.append(outcome(number))
                stops.expect_nothing_left()
        # Few are needless: an exit, when the namespaces or the sandbox are there.
        assert outcomes.count(False) > 0.9 * len(outcomes), outcomes
    finally:
        at.unlink(missing_ok=True)
        os.rename(libexec / "stops-jailer", libexec / "cordon-jailer")
    stops.expect_a_good_one()
