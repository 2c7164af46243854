"""Programs that trace a main process do not keep its exec from ending."""
import json

import pytest

from support import wait_until

PTRACE = """
import ctypes, os, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
TRACEME, SEIZE, TRACEEXIT = 0, 0x4206, 0x40
def seize(thread, options=0):
    if libc.ptrace(SEIZE, thread, None, options) != 0: sys.exit(os.strerror(ctypes.get_errno()))
"""

# Main ends by itself as soon as it is traced; the tracer never waits for it.
TRACED_BY_A_CHILD = PTRACE + """
traced, told = os.pipe()
if os.fork() == 0:
    seize(os.getppid())
    os.write(told, b'x')
    time.sleep(600)
os.read(traced, 1)
os._exit(7)
"""

# The same, but what is traced is a thread that is not the first.
A_THREAD_IS_TRACED = PTRACE + """
number, told = os.pipe()
threading.Thread(target=lambda: (os.write(told, b'%d' % threading.get_native_id()),
                                 time.sleep(600)), daemon=True).start()
thread = int(os.read(number, 20))
if os.fork() == 0:
    seize(thread)
    os.write(told, b'x')
    time.sleep(600)
os.read(number, 1)
os._exit(7)
"""

# Asks to be traced by whoever is its parent, and stops.
TRACED_BY_ITS_PARENT = PTRACE + """
import signal
if libc.ptrace(TRACEME, 0, None, None) != 0: sys.exit('TRACEME')
os.kill(os.getpid(), signal.SIGUSR2) if len(sys.argv) > 1 else os.kill(os.getpid(), signal.SIGWINCH)
os._exit(7)
"""

WAITS = "import os, time\nprint(os.getpid(), flush=True)\nwhile not os.path.exists('go'): time.sleep(0.02)\nos._exit(7)"
TRACES = PTRACE + """
seize(int(sys.argv[1]), int(sys.argv[2]))
print('traces', flush=True)
time.sleep(600)
"""


def python(program, *arguments):
    return ["--wall", "25s", "--", "python3", "-c", program, *arguments]


@pytest.mark.parametrize("program", [TRACED_BY_A_CHILD, A_THREAD_IS_TRACED], ids=["main", "thread"])
def test_an_exec_ends_with_a_main_that_its_child_traces(on, program):
    instance, runtime = on
    ended = instance.cordon("run", "--json", "--runtime", runtime, *python(program)).json
    assert ended.get("exit_code") == 7, ended
    assert ended["verdict"]["control"] == "none"
    assert ended["usage"]["wall_ms"] < 20_000


def test_a_main_that_asks_its_parent_to_trace_it_runs_on(on):
    instance, runtime = on
    ended = instance.cordon("run", "--json", "--runtime", runtime,
                            *python(TRACED_BY_ITS_PARENT)).json
    assert (ended["exit_code"], ended["verdict"]["control"]) == (7, "none"), ended
    killed = instance.cordon("run", "--json", "--runtime", runtime,
                             *python(TRACED_BY_ITS_PARENT, "die")).json
    assert killed.get("signal") == 12, killed  # SIGUSR2 has its usual effect


def traced_by_another_exec(instance, runtime, options, *limits):
    """A main that waits for the file `go`, the exec that traces it, and the sandbox."""
    sandbox = instance.acquire(runtime)
    main = instance.popen("exec", *limits, sandbox, "--", "python3", "-c", WAITS)
    pid = main.stdout.readline().decode().strip()
    tracer = instance.popen("exec", "--json", sandbox, "--", "sh", "-c",
                            f"python3 -c \"$0\" {pid} {options} > traces; true", TRACES)
    wait_until(lambda: instance.cordon("exec", sandbox, "--", "cat", "traces").out == b"traces\n",
               "main is traced")
    return sandbox, main, tracer


def test_an_exec_ends_with_a_main_that_another_exec_traces(on):
    instance, runtime = on
    sandbox, main, tracer = traced_by_another_exec(instance, runtime, 0, "--wall", "25s")
    instance.cordon("exec", sandbox, "--", "touch", "go")
    _, error = main.communicate(timeout=20)
    assert main.returncode == 7, error
    # It paid for that with its own end; its exec is told as any other's.
    out, _ = tracer.communicate(timeout=20)
    assert json.loads(out)["exit_code"] == 0
    instance.release(sandbox)


@pytest.mark.host
def test_a_deadline_holds_although_the_tracer_is_told_of_the_end_first(host):
    """Where no filter refuses it."""
    sandbox, main, tracer = traced_by_another_exec(host, "host", 64, "--wall", "4s")
    _, error = main.communicate(timeout=20)
    assert b"wall_clock" in error, error
    tracer.communicate(timeout=20)
    host.release(sandbox)


# Once killed, each stands in its exit until its tracer lets it go on, which
# stands in its own: nothing but a boot would end them.
RING = PTRACE + """
done = os.pipe()
def member(link):
    os.write(1, b'.')
    neighbour = int(os.read(link, 20))
    for options in (TRACEEXIT, TRACEEXIT | 0x2):
        if libc.ptrace(SEIZE, neighbour, None, options) == 0: os.write(1, b'TRACED')
    if libc.ptrace(SEIZE, neighbour, None, 0) == 0:
        if libc.ptrace(0x4200, neighbour, None, TRACEEXIT) == 0: os.write(1, b'SET')
    os.write(done[1], b'd')
    time.sleep(600)
links, pids = [os.pipe() for _ in range(4)], []
for link in links:
    pids.append(os.fork())
    if pids[-1] == 0: member(link[0])
for at, link in enumerate(links): os.write(link[1], b'%d' % pids[(at + 1) % 4])
for _ in links: os.read(done[0], 1)
os.kill(-1, 9)
"""


def test_no_ring_of_tracers_stays(service):
    sandbox = service.acquire(service.runtime)
    ended = service.cordon("exec", "--json", "--wall", "20s", sandbox, "--", "python3", "-c", RING)
    out = ended.json["stdout"]["text"]
    assert out.count(".") == 4 and "TRACED" not in out and "SET" not in out, ended
    receipt = json.loads(service.cordon("release", "--json", sandbox).out)
    assert receipt["complete"], receipt
