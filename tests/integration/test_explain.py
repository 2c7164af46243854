"""`explain`: the calls that a seccomp profile refused, by name and count."""
import os
import pathlib
import signal

import pytest

import support
from support import Api, refused, still_serves, v1

# x86-64's own numbers, and arguments that each profile refuses.
CALLS = [("unshare", 272, (0x10000000,), 3), ("mount", 165, (0, 0, 0, 0), 2), ("bpf", 321, (), 5),
         ("keyctl", 250, (), 7), ("io_uring_setup", 425, (), 1), ("clone3", 435, (0, 0), 2),
         # By argument: a namespace, a foreign family, weak memory, the core limit.
         ("clone", 56, (0x10000000,), 4), ("socket", 41, (40, 1, 0), 6),
         ("personality", 135, (0x40000,), 4),
         # No call at all.
         ("call 400", 400, (), 3), ("call 600", 600, (), 3),
         ("calls with numbers from 1024 on", 9999, (), 2)]
COUNTS = {name: count for name, _, _, count in CALLS}

# Prints the errno of each.
MAKE_CALLS = f"""
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    return ctypes.get_errno() if libc.syscall(number, *arguments) == -1 else 0
errors = []
for name, number, arguments, count in {CALLS!r}:
    errors += [call(number, *arguments) for _ in range(count)]
print(errors)
"""
CALL = "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
LISTENER = "anon_inode:seccomp notify"


def python(source):
    return ["/usr/bin/python3", "-c", source]


def counts(ended):
    listed = ended.result.explanation.refused_calls
    ordered = [(-call.count, call.name) for call in listed]
    assert ordered == sorted(ordered), listed
    return {call.name: call.count for call in listed}


def held_by_frontend(instance):
    """Listeners and their threads."""
    proc = pathlib.Path(f"/proc/{instance.agents}")
    links = [support.read_link(proc / "fd" / n) for n in os.listdir(proc / "fd")]
    names = [support.read_text(task / "comm").strip() for task in (proc / "task").iterdir()]
    return links.count(LISTENER), names.count("explain")


def frontend_holds_nothing(instance):
    support.wait_until(lambda: held_by_frontend(instance) == (0, 0), "no listener is left")


@pytest.mark.parametrize("profile", ["default", "tuned", "build"])
def test_names_and_counts(service, api, profile):
    """Exact, also for calls that are refused for their arguments."""
    spec = api.spec(seccomp=profile)
    plain = api.run(python(MAKE_CALLS), sandbox=spec)
    asked = api.run(python(MAKE_CALLS), sandbox=spec, explain=True)
    assert (asked.result.exit_code, asked.err) == (0, b""), asked.err
    assert asked.out == plain.out, "the same errors, asked about or not"
    assert set(eval(asked.out)) == {1, 38}, asked.out
    listed = counts(asked)
    assert {name: listed.get(name) for name in COUNTS} == COUNTS, listed
    assert asked.result.explanation.incomplete == ""
    assert asked.result.verdict.control == v1.NONE
    assert not plain.result.HasField("explanation")
    frontend_holds_nothing(service)


def test_nothing_was_refused(api):
    ended = api.run(["true"], explain=True)
    assert ended.result.exit_code == 0
    assert (counts(ended), ended.result.explanation.incomplete) == ({}, "")


def test_a_tuned_profile_says_what_a_program_lacks(api):
    source = "import socket\ntry: socket.socket()\nexcept OSError as error: print(error.errno)"
    ended = api.run(python(source), sandbox=api.spec(seccomp="tuned"), explain=True)
    assert ended.out == b"1\n"
    assert counts(ended)["socket"] == 1


def test_children_are_counted(api):
    source = CALL + ("for i in range(3):\n"
                     "    if os.fork() == 0:\n"
                     "        if os.fork() == 0: libc.syscall(272, 0x10000000); os._exit(0)\n"
                     "        os.wait(); libc.syscall(272, 0x10000000); os._exit(0)\n"
                     "    os.wait()\n")
    assert counts(api.run(python(source), explain=True))["unshare"] == 6


@pytest.mark.parametrize("made_for_it", [True, False])
def test_in_a_sandbox_that_lives(service, api, made_for_it):
    """One that wasn't made for it says what it can't know."""
    sandbox = api.acquire(explain=made_for_it, seccomp="tuned").id
    try:
        ended = api.exec(sandbox, python(MAKE_CALLS), explain=True)
        listed, lacks = counts(ended), ended.result.explanation.incomplete
        assert listed["clone3"] == COUNTS["clone3"], listed
        if made_for_it:
            assert {name: listed.get(name) for name in COUNTS} == COUNTS, listed
            assert lacks == ""
            assert api.exec(sandbox, python(MAKE_CALLS)).out == ended.out
        else:
            assert "unshare" not in listed and "not made to be explained" in lacks
        assert counts(api.exec(sandbox, python(MAKE_CALLS), explain=True)) == listed
    finally:
        api.release(sandbox)
    frontend_holds_nothing(service)


def test_few_descriptors_and_processes(api):
    """What explaining needs fits into the smallest limits."""
    with_files = api.spec(limits={"files": 8})
    assert api.run(["true"], sandbox=with_files, explain=True).result.exit_code == 0
    with_two = api.spec(limits={"pids": 2})
    assert api.run(["true"], sandbox=with_two, explain=True).result.exit_code == 0


def test_another_user_and_a_missing_program(api):
    ended = api.run(python(CALL + "print(os.getuid(), libc.syscall(272, 0x10000000))"),
                    explain=True, user="0")
    assert (ended.out, counts(ended)["unshare"]) == (b"0 -1\n", 1)
    missing = api.run(["no-such-program"], explain=True)
    assert missing.result.not_started.step == "lookup"
    assert not missing.result.HasField("explanation")


# ---------------------------------------------------------------- what stays as it is


def test_death_by_sigsys_is_still_the_verdict(api):
    source = CALL + "libc.syscall(272, 0x10000000); libc.syscall(0x40000000)"
    ended = api.run(python(source), explain=True)
    verdict = ended.result.verdict
    assert (verdict.control, verdict.stopped, ended.result.signal) == (v1.SYSCALL, True,
                                                                       signal.SIGSYS)
    assert counts(ended)["unshare"] == 1


def test_no_listener_of_its_own(api):
    """With one it could let its own calls pass, once ours is closed."""
    source = CALL + """
import struct
program = struct.pack("HBBI", 6, 0, 0, 0x7fff0000)
buffer = ctypes.create_string_buffer(program)
filter = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", 1, ctypes.addressof(buffer)))
def load(flags):
    return ctypes.get_errno() if libc.syscall(317, 1, flags, filter) == -1 else 0
print(load(8), load(8 | 1 << 32), load(8 | 32), load(0))
"""
    ended = api.run(python(source), explain=True)
    assert ended.out == b"16 16 16 0\n", (ended.out, ended.err)
    assert counts(ended) == {}


def test_no_new_privileges_and_no_more_calls(api):
    """The filters are as many as else, and the same calls pass."""
    status = "print([l for l in open('/proc/self/status') if l[:7] in ('NoNewPr', 'Seccomp')])"
    assert api.run(python(status), explain=True).out == api.run(python(status)).out


def test_host_has_nothing_to_explain(host_api):
    error = refused(host_api.run, ["true"], runtime="host", explain=True)
    assert (error.code, error.reason) == ("INVALID_ARGUMENT", "UNSUPPORTED")
    error = refused(host_api.acquire, runtime="host", explain=True)
    assert (error.code, error.reason) == ("INVALID_ARGUMENT", "UNSUPPORTED")


# ---------------------------------------------------------------- attacks


def test_a_flood_from_many_threads(service, api):
    source = CALL + """
import threading
wrong = []
def flood():
    for _ in range(300):
        if libc.syscall(272, 0x10000000) != -1 or ctypes.get_errno() != 1: wrong.append(1)
threads = [threading.Thread(target=flood) for _ in range(20)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(len(wrong))
"""
    ended = api.run(python(source), explain=True)
    assert (ended.out, counts(ended)["unshare"]) == (b"0\n", 6000)
    frontend_holds_nothing(service)


def test_an_endless_flood_ends_with_its_deadline(service, api):
    """It makes work for the frontend, but a limited amount."""
    source = CALL + "while True: libc.syscall(272, 0x10000000)"
    before = support.cpu_ticks(service.agents)
    ended = api.run(python(source), explain=True,
                    sandbox=api.spec(limits={"wall_ms": 3000}))
    assert ended.result.verdict.control == v1.WALL_CLOCK
    made = counts(ended)["unshare"]
    # A burst of 10,000, and 5,000 a second from the first call on.
    assert 0 < made < 10_000 + 5_000 * 60, made
    assert support.cpu_ticks(service.agents) - before < 60 * os.sysconf("SC_CLK_TCK")
    frontend_holds_nothing(service)
    still_serves(service)


def test_one_that_forks_and_leaves(service, api):
    """Its listener ends with the exec; what it left gets ENOSYS."""
    sandbox = api.acquire(explain=True).id
    try:
        source = CALL + """
import time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 3)
        while libc.syscall(272, 0x10000000) == -1 and ctypes.get_errno() == 1: pass
        open("/work/errno", "w").write(str(ctypes.get_errno()))
        time.sleep(600)
    os._exit(0)
os.wait()
libc.syscall(165, 0, 0, 0, 0)
"""
        ended = api.exec(sandbox, python(source), explain=True)
        assert ended.result.left_running == 1
        assert counts(ended)["mount"] == 1
        assert "left running" in ended.result.explanation.incomplete
        frontend_holds_nothing(service)

        def told():
            return api.exec(sandbox, ["sh", "-c", "cat /work/errno 2>/dev/null || true"]).out
        assert support.wait_until(told, "it was told") == b"38"
    finally:
        api.release(sandbox)


def test_one_that_kills_itself(service, api):
    source = CALL + "for _ in range(9): libc.syscall(272, 0x10000000)\nos.kill(os.getpid(), 9)"
    ended = api.run(python(source), explain=True)
    assert (ended.result.signal, counts(ended)["unshare"]) == (9, 9)
    frontend_holds_nothing(service)


def begin_asking(api):
    """A call under way whose program makes refused calls."""
    source = CALL + "print(1, flush=True)\nwhile True: libc.syscall(272, 0x10000000)"
    start = v1.ExecRequest(run=v1.RunStart(sandbox=api.spec(),
                                           exec=api.exec_spec(python(source), explain=True)))
    call = api.stub.Run(iter([start]), timeout=60)
    while next(call).WhichOneof("message") != "output":
        pass
    return call


def test_a_cancelled_call(service, api):
    call = begin_asking(api)
    assert held_by_frontend(service) == (1, 1)
    call.cancel()
    frontend_holds_nothing(service)


def test_the_frontend_is_killed(runtime):
    """The program ends with it, and nothing is left."""
    with support.Instance(runtime=runtime) as instance:
        with Api(instance.address) as client:
            call = begin_asking(client)
            programs = [p for p in instance.sandbox_processes() if "libc.syscall" in
                        support.read_text(f"/proc/{p}/cmdline")]
            assert programs
            os.kill(instance.agents, signal.SIGKILL)
            support.wait_until(lambda: not any(support.process_state(p) not in ("", "Z")
                                               for p in programs), "the program is gone")
            call.cancel()


# ---------------------------------------------------------------- the command line


def test_the_command_line(service):
    done = service.cordon("run", "--explain", "--", *python(MAKE_CALLS))
    assert done.status == 0, done
    lines = [line.rsplit(None, 1) for line in done.err.decode().splitlines()
             if line.startswith("  ")]
    assert {name.strip(): int(count) for name, count in lines} == COUNTS, done.err
    done = service.cordon("run", "--explain", "--json", "--", "true")
    assert (done.json["refused_calls"], done.json["refused_calls_incomplete"]) == ([], "")
    assert "refused_calls" not in service.cordon("run", "--json", "--", "true").json


def test_the_command_line_in_a_sandbox_that_lives(service):
    sandbox = service.acquire("", "--explain")
    try:
        done = service.cordon("exec", "--explain", "--json", sandbox, "--", *python(MAKE_CALLS))
        listed = {call["name"]: call["count"] for call in done.json["refused_calls"]}
        assert (listed, done.json["refused_calls_incomplete"]) == (COUNTS, "")
        card = service.cordon("inspect", "--json", sandbox).json["card"]
        assert card["seccomp"]["agent"]["profile"] == "agent (asks)", card["seccomp"]
    finally:
        service.release(sandbox)
