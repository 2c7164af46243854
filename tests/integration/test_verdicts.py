"""Verdicts of real programs on real counters (docs/verdicts.md)."""
import json
import signal
import subprocess

import pytest

from support import processes_with, program_of, wait_until

# Touches a gigabyte: more than any limit used here.
HOG = "x = bytearray(1 << 30)"


def judged(instance, *arguments, runtime="", **keywords):
    """(result, verdict) of `cordon run --json`."""
    done = instance.cordon("run", "--runtime", runtime, "--json", *arguments, **keywords)
    return done.json, done.json["verdict"]


def evidence_of(verdict, word):
    """The piece of evidence whose counter's name holds the word."""
    found = [e for e in verdict["evidence"] if word in e["counter"]]
    assert found, f"no evidence about {word}: {verdict}"
    return found[0]


def test_memory(service):
    result, verdict = judged(service, "--memory", "128M", "--", "python3", "-c", HOG)
    assert result["signal"] == signal.SIGKILL
    assert (verdict["control"], verdict["stopped"]) == ("memory", True)
    assert verdict["limit"] == 128 << 20
    oom = evidence_of(verdict, "oom_kill")
    assert oom["source"] == "kernel"
    assert oom["after"] > oom["before"]
    assert verdict["shared"] is False


def test_oom_kill_of_a_grandchild_while_main_exits_0(service):
    result, verdict = judged(service, "--memory", "128M", "--", "sh", "-c",
                             f"sh -c 'python3 -c \"{HOG}\"; true'; exit 0")
    assert result["exit_code"] == 0
    assert (verdict["control"], verdict["stopped"]) == ("memory", False)
    assert evidence_of(verdict, "oom_kill")["after"] >= 1


def test_a_shell_that_passes_on_137_after_an_oom_kill(service):
    result, verdict = judged(service, "--memory", "128M", "--", "sh", "-c",
                             f"python3 -c '{HOG}'; exit $?")
    assert result["exit_code"] == 137
    assert verdict["control"] == "memory"
    assert evidence_of(verdict, "oom_kill")["source"] == "kernel"


def test_exit_137_is_stopped_by_nothing(on):
    instance, runtime = on
    result, verdict = judged(instance, "--", "sh", "-c", "exit 137", runtime=runtime)
    assert result["exit_code"] == 137
    assert (verdict["control"], verdict["stopped"]) == ("none", False)


@pytest.mark.parametrize("name", ["SIGXCPU", "SIGXFSZ", "SIGKILL", "SIGTERM"])
def test_a_signal_raised_at_oneself_is_stopped_by_nothing(on, name):
    instance, runtime = on
    result, verdict = judged(instance, "--", "python3", "-c",
                             f"import os, signal; signal.signal(signal.SIGXFSZ, signal.SIG_DFL);"
                             f"os.kill(os.getpid(), signal.{name})", runtime=runtime)
    assert result["signal"] == getattr(signal, name)
    assert (verdict["control"], verdict["stopped"]) == ("none", False), verdict


def test_a_refused_fork_that_the_program_handles(service):
    program = """
import os, time
refused = 0
for n in range(200):
    try:
        if os.fork() == 0: time.sleep(60); os._exit(0)
    except OSError: refused += 1
print(refused)
"""
    result, verdict = judged(service, "--pids", "32", "--", "python3", "-c", program)
    assert result["exit_code"] == 0
    assert int(result["stdout"]["text"]) > 100
    assert (verdict["control"], verdict["stopped"]) == ("processes", False)
    assert verdict["limit"] == 32
    pids = evidence_of(verdict, "pids.events")
    assert pids["source"] == "kernel"
    assert pids["after"] - pids["before"] >= 100


def test_an_oom_kill_and_a_deadline_together(service):
    result, verdict = judged(service, "--memory", "128M", "--wall", "4s", "--", "sh", "-c",
                             f"python3 -c '{HOG}'; exec sleep 300")
    assert result["signal"] == signal.SIGKILL
    # Main was ended by the deadline; memory refused another process something.
    assert {verdict["control"], *verdict["others"]} >= {"wall_clock", "memory"}, verdict
    assert verdict["stopped"] is True
    assert verdict["control"] == "wall_clock", verdict


def test_the_exec_after_an_oom_kill_is_clean(service):
    sandbox = service.acquire(service.runtime, "--memory", "128M")
    first = service.cordon("exec", "--json", sandbox, "--", "python3", "-c", HOG).json
    second = service.cordon("exec", "--json", sandbox, "--", "python3", "-c", "print(1)").json
    service.release(sandbox)
    assert first["verdict"]["control"] == "memory"
    assert second["exit_code"] == 0
    assert (second["verdict"]["control"], second["verdict"]["others"]) == ("none", [])


def test_one_execs_oom_kill_is_not_anothers(service):
    sandbox = service.acquire(service.runtime, "--memory", "128M")
    # It needs no memory while the other dies: the kernel, still short of it then,
    # may take one who does for a second victim.
    waiting = service.popen("exec", "--json", sandbox, "--", "cat", "-u", stdin=subprocess.PIPE)
    wait_until(lambda: [p for p in processes_with(b"cat\0-u") if program_of(p) == "cat"],
               "it runs")
    killed = service.cordon("exec", "--json", sandbox, "--", "python3", "-c", HOG).json
    out, _ = waiting.communicate(timeout=60)
    service.release(sandbox)
    assert killed["verdict"]["control"] == "memory"
    assert json.loads(out)["verdict"]["control"] == "none", out


def test_pythons_efbig_is_known_from_the_file_that_stands_at_the_limit(service):
    program = """
try:
    with open('big', 'wb', 0) as f:
        for n in range(64): f.write(bytes(65536))
except OSError as e: print(e.errno)
"""
    result, verdict = judged(service, "--file-size", "1M", "--", "python3", "-c", program)
    assert (result["exit_code"], result["stdout"]["text"]) == (0, "27\n")
    assert (verdict["control"], verdict["stopped"]) == ("file_size", False)
    assert verdict["limit"] == 1 << 20
    assert all(e["source"] == "agent" for e in verdict["evidence"]), verdict


def test_a_file_at_the_limit_whose_name_is_no_text(service):
    """Names are a program's to choose: they reach the client as text all the same."""
    program = """
try:
    with open(b'\\xff\\x1b[2J', 'wb', 0) as f:
        for n in range(64): f.write(bytes(65536))
except OSError: pass
"""
    done = service.cordon("run", "--file-size", "1M", "--json", "--", "python3", "-c", program)
    assert done.json["verdict"]["control"] == "file_size", done
    done = service.cordon("run", "--file-size", "1M", "--", "python3", "-c", program)
    assert done.status == 0 and b"\x1b" not in done.err, done


def test_file_size(on):
    instance, runtime = on
    # head, unlike CPython, keeps SIGXFSZ's default.
    result, verdict = judged(instance, "--file-size", "1M", "--", "sh", "-c",
                             "exec head -c 8000000 /dev/zero > big", runtime=runtime)
    assert result["signal"] == signal.SIGXFSZ
    assert (verdict["control"], verdict["stopped"]) == ("file_size", True)
    assert verdict["limit"] == 1 << 20


def test_disk(service):
    result, verdict = judged(service, "--disk", "16M", "--file-size", "64M", "--", "sh", "-c",
                             "head -c 40000000 /dev/zero > /work/big")
    assert result["exit_code"] != 0
    assert b"No space left" in result["stderr"]["text"].encode()
    assert (verdict["control"], verdict["stopped"]) == ("disk", False)
    assert verdict["limit"] == 16 << 20
    assert {e["source"] for e in verdict["evidence"]} == {"agent"}


def test_output(on):
    instance, runtime = on
    result, verdict = judged(instance, "--output", "100K", "--", "head", "-c", "1000000",
                             "/dev/zero", runtime=runtime)
    assert verdict["control"] == "output"
    assert verdict["stopped"] is False
    assert result["stdout"]["total"] == 1_000_000
    assert result["stdout"]["dropped"] >= 1_000_000 - 100 * 1024
    assert verdict["limit"] == 100 * 1024


def test_cpu_time_of_four_children(service):
    # None passes 0.6 s, so RLIMIT_CPU never fires; together they pass 1 s.
    program = """
import os, time
def burn():
    while time.process_time() < 0.6: pass
for n in range(4):
    if os.fork() == 0: burn(); time.sleep(60); os._exit(0)
time.sleep(60)
"""
    result, verdict = judged(service, "--cpu-time", "1s", "--wall", "40s", "--cpus", "2", "--",
                             "python3", "-c", program)
    assert result["signal"] == signal.SIGKILL
    assert (verdict["control"], verdict["stopped"]) == ("cpu_time", True)
    assert verdict["limit"] == 1000
    assert 1000 <= verdict["observed"] < 5000
    assert verdict["evidence"][0]["source"] == "kernel"


def test_cpu_time(on):
    instance, runtime = on
    result, verdict = judged(instance, "--cpu-time", "1s", "--wall", "50s", "--", "python3", "-c",
                             "while True: pass", runtime=runtime)
    assert result["signal"] in (signal.SIGKILL, signal.SIGXCPU)
    assert (verdict["control"], verdict["stopped"]) == ("cpu_time", True)
    assert verdict["limit"] == 1000


def test_wall_clock(on):
    instance, runtime = on
    result, verdict = judged(instance, "--wall", "1s", "--", "sleep", "300", runtime=runtime)
    assert result["signal"] == signal.SIGKILL
    assert (verdict["control"], verdict["stopped"]) == ("wall_clock", True)
    assert verdict["limit"] == 1000
    assert 1000 <= verdict["observed"] < 20_000


def test_a_deadline_ends_double_forked_processes_too(on):
    instance, runtime = on
    _, verdict = judged(instance, "--wall", "1s", "--", "sh", "-c",
                        "(setsid sh -c 'sleep 323 & exec sleep 323' &) ; exec sleep 300",
                        runtime=runtime)
    assert verdict["control"] == "wall_clock"
    assert not processes_with(b"sleep\x00323")


def test_death_by_sigsys_is_syscall(service):
    # waitid tells the signal and not who sent it: raised at oneself looks the same.
    result, verdict = judged(service, "--", "python3", "-c",
                             "import os, signal; os.kill(os.getpid(), signal.SIGSYS)")
    assert result["signal"] == signal.SIGSYS
    assert (verdict["control"], verdict["stopped"]) == ("syscall", True)


def test_a_verdict_line_is_printed_when_something_stopped_the_program(service):
    done = service.cordon("run", "--memory", "64M", "--", "python3", "-c", HOG)
    assert done.status == 137
    lines = [line for line in done.err.decode().splitlines() if "memory" in line]
    assert len(lines) == 1, done.err
    assert "oom_kill" in lines[0]


def test_no_verdict_line_when_nothing_did(service):
    assert service.cordon("run", "--", "sh", "-c", "exit 7").err == b""
