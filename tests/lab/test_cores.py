"""A host whose core_pattern is a pipe: no sandbox ever starts its handler.

The kernel runs the handler as root of the host. With RLIMIT_CORE 0 it still
does; only 1 means none at all.
"""
import os
import pathlib
import signal
import subprocess

import pytest

import support
from support import wait_until

CORES = pathlib.Path("/run/lab/cores")


def dumped():
    """(pid, uid) of whoever made the handler run, so far."""
    return [tuple(map(int, line.split())) for line in support.read_text(CORES).splitlines()]


def crash_outside():
    """Dumps core here, with a soft limit of 0, and waits until the handler has run."""
    with subprocess.Popen(["sh", "-c", "ulimit -S -c 0; kill -SEGV $$"]) as process:
        pid = process.pid
    assert process.returncode == -signal.SIGSEGV
    wait_until(lambda: any(p == pid for p, _ in dumped()), "the handler has run")


def test_the_handler_runs_outside_a_sandbox():
    assert support.read_text("/proc/sys/kernel/core_pattern").startswith("|")
    crash_outside()


# RLIMIT_CORE as high as it goes, then the signal.
CRASH = """
import os, resource, signal, sys
for wanted in (1 << 40, resource.RLIM_INFINITY, 2, 0):
    try: resource.setrlimit(resource.RLIMIT_CORE, (wanted, wanted))
    except (OSError, ValueError): pass
signal.signal({0}, signal.SIG_DFL)
os.kill(os.getpid(), {0})
"""


@pytest.mark.parametrize("user", ["", "root"])
def test_it_never_runs_for_a_sandbox(api, runtime, user):
    acquired = api.acquire(runtime)
    for number in [signal.SIGSEGV, signal.SIGABRT, signal.SIGSYS, signal.SIGXFSZ, signal.SIGXCPU]:
        ended = api.exec(acquired.id, ["python3", "-c", CRASH.format(int(number))], user=user)
        assert ended.result.signal == number, ended.result
    # The handler of what crashed before this one would have been started before.
    crash_outside()
    # Of this test and of all others in this run.
    assert [uid for _, uid in dumped() if uid in support.ID_SPAN] == []
    api.release(acquired.id)


def test_the_limit_is_one_and_hard(api, runtime):
    acquired = api.acquire(runtime)
    ended = api.exec(acquired.id, ["grep", "core", "/proc/self/limits"])
    assert ended.out.split()[4:6] == [b"1", b"1"], ended.out
    api.release(acquired.id)
