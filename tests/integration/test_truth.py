"""That what is said of an exec is so, also beside what others left or do."""
import os
import signal
import socket
import struct
import subprocess
import time

import pytest

import support
from support import Refused, wait_until

v1 = support.v1


def control(ended):
    return v1.Control.Name(ended.result.verdict.control).lower()


# ---------------------------------------------------------------- what is left running


def test_what_has_ended_since_is_left_running_no_more(api):
    acquired = api.acquire()
    first = api.exec(acquired.id, ["sh", "-c", "sleep 0.3 & exit 0"])
    assert first.result.left_running == 1

    def quiet():
        return "earlier" not in api.exec(acquired.id, ["true"]).result.verdict.note

    wait_until(quiet, "an exec that says nothing of earlier ones")
    api.release(acquired.id)


def test_what_still_runs_is_said_to(api):
    acquired = api.acquire()
    api.exec(acquired.id, ["sh", "-c", "sleep 300 & exit 0"])
    note = api.exec(acquired.id, ["true"]).result.verdict.note
    assert "1 process of earlier execs" in note, note
    api.release(acquired.id)


def test_what_the_broker_killed_was_not_left_running(api):
    bomb = "while :; do (setsid sh -c 'while :; do :; done' &) 2>/dev/null; done"
    ended = api.run(["sh", "-c", bomb], sandbox=api.spec(limits=dict(cpu_time_ms=500, pids=32)))
    assert control(ended) == "cpu_time", ended.result
    assert ended.result.left_running == 0, ended.result


def test_cpu_time_holds_for_what_outlives_main(api):
    acquired = api.acquire(limits=dict(cpu_time_ms=1000, cpu_millis=2000))
    marker = f"cordon-burner-{os.getpid()}"
    # Each burns a little and starts the next: none ever meets its own rlimit.
    burner = ("import os,sys,time\n"
              "while True:\n"
              "    end = time.process_time() + 0.02\n"
              "    while time.process_time() < end: pass\n"
              "    if os.fork(): os._exit(0)\n"
              "    os.setsid()\n")
    api.exec(acquired.id, ["sh", "-c", f"python3 -c '{burner}' {marker} >/dev/null 2>&1 & exit 0"])
    wait_until(lambda: support.processes_with(marker), "it burns")
    wait_until(lambda: not support.processes_with(marker), "it is ended at the limit")
    api.release(acquired.id)


# ---------------------------------------------------------------- file size


@pytest.mark.parametrize("path", ["/work/x", "/tmp/x", "/dev/shm/x"])
def test_file_size_is_seen_wherever_a_program_can_write(api, path):
    ended = api.run(["dd", "if=/dev/zero", f"of={path}", "bs=64k", "count=1000"],
                    sandbox=api.spec(limits=dict(file_size_bytes=4 << 20)))
    assert ended.result.signal == signal.SIGXFSZ
    assert control(ended) == "file_size" and ended.result.verdict.stopped, ended.result


# ---------------------------------------------------------------- refused before it begins


@pytest.mark.parametrize("field, value", [("wall_ms", 1 << 40), ("file_size_bytes", 1 << 40),
                                          ("output_bytes", 1 << 40), ("cpu_time_ms", 1 << 40)])
def test_a_limit_that_is_too_wide_begins_nothing(api, field, value):
    acquired = api.acquire()
    began = time.monotonic()
    with pytest.raises(Refused) as refused:
        api.exec(acquired.id, ["true"], limits=v1.Limits(**{field: value}))
    assert refused.value.code == "INVALID_ARGUMENT"
    assert time.monotonic() - began < support.PATIENCE
    shown = api.call("Inspect", v1.InspectRequest(id=acquired.id)).sandbox
    assert shown.execs_total == 0
    api.release(acquired.id)


def test_no_more_execs_than_processes(api):
    acquired = api.acquire(limits=dict(pids=2))
    running = [api.begin_exec(acquired.id, ["sleep", "300"]) for _ in range(2)]
    with pytest.raises(Refused) as refused:
        api.exec(acquired.id, ["true"])
    assert refused.value.reason == "TOO_MANY_EXECS"
    for each in running:
        each.cancel()
    api.release(acquired.id)


# ---------------------------------------------------------------- others


def test_a_sandbox_without_memory_holds_nobody_else_up(api):
    """mkdir of a cgroup below a full one takes the kernel up to a second."""
    full = api.acquire(limits=dict(memory_bytes=64 << 20))
    other = api.acquire()
    # Socket buffers: nothing that could be reclaimed, and many to share them.
    hog = ("import socket,os,time\n"
           "for _ in range(20):\n"
           "    if os.fork() == 0:\n"
           "        keep = []\n"
           "        while True:\n"
           "            try:\n"
           "                a, b = socket.socketpair(); a.setblocking(False); keep += [a, b]\n"
           "                while True: a.send(bytes(65536))\n"
           "            except BlockingIOError: pass\n"
           "            except OSError: time.sleep(0.01)\n"
           "time.sleep(300)\n")
    hogging = api.begin_exec(full.id, ["python3", "-c", hog])
    wait_until(lambda: api.call("Inspect", v1.InspectRequest(id=full.id)).sandbox, "it is there")
    end = time.monotonic() + 4
    while time.monotonic() < end:
        api.exec(other.id, ["true"])
        try:
            api.exec(full.id, ["true"])
        except Refused as refused:
            # Each of its page faults may take the kernel as long as the mkdir.
            assert refused.reason in ("TOO_MANY_EXECS", "START_TIMEOUT"), refused
    hogging.cancel()
    api.release(full.id)
    api.release(other.id)


def test_a_run_ends_with_its_frontend(runtime):
    with support.Instance(runtime=runtime) as instance:
        with support.Api(instance.address) as api:
            call = api.begin_run(["sleep", "300"])
            wait_until(lambda: support.processes_with(b"sleep\x00300"), "the program runs")
            os.kill(instance.agents, signal.SIGKILL)
            wait_until(lambda: not instance.traces(), "nothing of it is left")
            call.cancel()


def test_pings_take_no_memory():
    """A flood of HTTP/2 pings, answers unread."""
    def frame(kind, payload):
        return struct.pack(">I", len(payload))[1:] + bytes([kind, 0, 0, 0, 0, 0]) + payload

    flood = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, b"") + frame(6, b"12345678") * 30000
    with support.Instance() as instance:
        agents = instance.agents
        before = support.resident_kib(agents)
        for _ in range(2):
            connections = []
            for _ in range(20):
                connection = socket.socket(socket.AF_UNIX)
                connection.settimeout(0.5)
                connection.connect(instance.address.removeprefix("unix:"))
                try:
                    connection.sendall(flood)
                except OSError:
                    pass
                connections.append(connection)
            for connection in connections:
                connection.close()
        assert support.resident_kib(agents) - before < 150 * 1024
        with support.Api(instance.address) as api:
            assert api.run(["true"]).result.exit_code == 0


# ---------------------------------------------------------------- the command line


def test_a_closed_stdin_is_an_empty_one(service):
    done = subprocess.run(["sh", "-c", 'exec "$@" <&-', "sh", *map(str, service.command(
        "run", "--", "cat"))], env=service.environ(), capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout == b""


def test_up_minds_no_ignored_sigchld():
    instance = support.Instance(prefix=("sh", "-c", 'trap "" CHLD; exec "$@"', "sh"))
    try:
        instance.start()
        before = instance.agents
        os.kill(before, signal.SIGKILL)
        wait_until(lambda: instance.agents != before, "the frontend is started again")
        instance.stop()
    finally:
        instance.dispose()


def test_programs_start_with_no_signal_ignored(api):
    ended = api.run(["grep", "SigIgn", "/proc/self/status"])
    assert ended.out.split()[1] == b"0000000000000000", ended.out
