"""The main job: a program runs, its output and status come back."""
import concurrent.futures
import hashlib
import json
import os
import subprocess

import pytest

from support import Completed, processes_with, stream_bytes


def run(on, *arguments, **keywords) -> Completed:
    instance, runtime = on
    return instance.cordon("run", "--runtime", runtime, *arguments, **keywords)


def test_a_python_program_prints(on):
    done = run(on, "--", "python3", "-c", "print(sum(range(10)))")
    assert (done.status, done.out, done.err) == (0, b"45\n", b"")


@pytest.mark.parametrize("status", [0, 1, 42, 126, 137, 255])
def test_the_exit_status_is_mirrored(on, status):
    assert run(on, "--", "sh", "-c", f"exit {status}").status == status


def test_a_signal_becomes_128_plus_its_number(on):
    assert run(on, "--", "sh", "-c", "kill -TERM $$").status == 128 + 15


def test_standard_output_and_error_stay_apart(on):
    done = run(on, "--", "sh", "-c", "echo one; echo two >&2; echo three")
    assert (done.out, done.err) == (b"one\nthree\n", b"two\n")


def test_output_in_packets_is_counted_to_the_byte(on):
    """A pipe in O_DIRECT mode drops what a read leaves of a packet."""
    instance, runtime = on
    program = ("import fcntl, os\n"
               "fcntl.fcntl(1, fcntl.F_SETFL, os.O_DIRECT)\n"
               "for _ in range(1000): os.write(1, b'p' * 4000)\n")
    ended = instance.cordon("run", "--json", "--runtime", runtime, "--output", "10000", "--",
                            "python3", "-c", program).json
    out = ended["stdout"]
    assert (out["total"], out["dropped"], len(out["text"])) == (4_000_000, 3_990_000, 10_000), out


def test_standard_input_passes_through_byte_for_byte(on):
    data = bytes(range(256)) * 4096
    done = run(on, "--output", "8M", "--", "cat", stdin=data)
    assert done.status == 0
    assert hashlib.sha256(done.out).digest() == hashlib.sha256(data).digest()


def test_a_program_that_ignores_its_input_ends(on):
    done = run(on, "--", "true", stdin=b"x" * 4_000_000)
    assert (done.status, done.out) == (0, b"")


def test_environment_is_what_was_given(on):
    done = run(on, "--env", "ANSWER=42", "--env", "EMPTY=", "--env", "E=a=b", "--",
               "python3", "-c", "import json, os; print(json.dumps(dict(os.environ)))",
               env={"CALLERS_SECRET": "x"})
    environment = json.loads(done.out)
    assert environment["ANSWER"] == "42"
    assert environment["EMPTY"] == ""
    assert environment["E"] == "a=b"
    assert "CALLERS_SECRET" not in environment
    assert "PATH" in environment
    assert not [k for k in environment if k.startswith(("CORDON", "LISTEN_", "NOTIFY_"))]


def test_working_directory(on):
    assert run(on, "--cwd", "/usr/bin", "--", "pwd").out == b"/usr/bin\n"


def test_working_directory_is_relative_to_the_sandboxs(service):
    done = service.cordon("run", "--", "pwd")
    assert done.out == b"/work\n"
    sandbox = service.acquire(service.runtime)
    assert service.cordon("exec", sandbox, "--", "mkdir", "-p", "a/b").status == 0
    assert service.cordon("exec", "--cwd", "a/b", sandbox, "--", "pwd").out == b"/work/a/b\n"
    service.release(sandbox)


def test_users_inside(service):
    def ids(*flags):
        return service.cordon("run", *flags, "--", "sh", "-c", "id -u; id -g; id -G").out.split()
    assert ids() == [b"1000"] * 3
    assert ids("--user", "root") == [b"0"] * 3
    assert ids("--user", "1234")[0] == b"1234"
    assert ids("--user", "1234:99") == [b"1234", b"99", b"99"]


def test_a_root_user_inside_has_no_capabilities(service):
    done = service.cordon("run", "--user", "root", "--", "grep", "-E", "^(Cap|NoNewPrivs|Seccomp:)",
                       "/proc/self/status")
    fields = dict(line.split(":\t") for line in done.out.decode().splitlines())
    for name in ["CapInh", "CapPrm", "CapEff", "CapAmb"]:
        assert int(fields[name], 16) == 0, fields
    # The agent's three (KILL, SETGID, SETUID), which it can't take out of the
    # bounding set; with no_new_privs nobody gets one from there.
    assert int(fields["CapBnd"], 16) == 0b11100000, fields
    assert fields["NoNewPrivs"] == "1"
    assert fields["Seccomp"] == "2"


def test_the_agents_own_user_cannot_be_named(service):
    done = service.cordon("run", "--user", "65000", "--", "true")
    assert done.status in (125, 126), done


def test_json_has_the_documented_shape(on):
    done = run(on, "--json", "--", "sh", "-c", "printf out; printf err >&2; exit 3")
    assert done.status == 3
    result = done.json
    assert result["exit_code"] == 3
    assert result.get("signal") in (None, 0)
    verdict = result["verdict"]
    assert verdict["control"] == "none"
    assert verdict["stopped"] is False
    assert isinstance(verdict["shared"], bool)
    assert isinstance(verdict["evidence"], list)
    assert verdict["others"] == []
    assert {"limit", "observed"} <= verdict.keys()
    assert result["usage"].keys() >= {"wall_ms", "cpu_user_ms", "cpu_system_ms", "max_rss_bytes"}
    assert 0 < result["usage"]["wall_ms"] < 60_000
    assert result["usage"]["max_rss_bytes"] > 100_000
    assert result["stdout"] == {"total": 3, "dropped": 0, "text": "out"}
    assert result["stderr"] == {"total": 3, "dropped": 0, "text": "err"}
    assert result["timings"].keys() >= {"acquire_ms", "exec_ms", "release_ms"}
    assert all(value >= 0 for value in result["timings"].values())


def test_json_shows_bytes_that_are_not_utf8_as_base64(on):
    data = b"\xff\xfe\x00binary\x80"
    done = run(on, "--json", "--", "cat", stdin=data)
    stream = done.json["stdout"]
    assert "text" not in stream
    assert stream_bytes(stream) == data


def test_json_of_a_signal(on):
    result = run(on, "--json", "--", "sh", "-c", "kill -USR1 $$").json
    assert result["signal"] == 10
    assert result.get("exit_code") is None
    assert result["verdict"]["control"] == "none"


def test_several_execs_share_a_sandboxs_files(on):
    instance, runtime = on
    sandbox = instance.acquire(runtime)
    try:
        assert instance.cordon("exec", sandbox, "--", "sh", "-c", "echo kept > note").status == 0
        assert instance.cordon("exec", sandbox, "--", "cat", "note").out == b"kept\n"
    finally:
        instance.release(sandbox)


def test_execs_run_at_the_same_time_in_one_sandbox(on):
    instance, runtime = on
    sandbox = instance.acquire(runtime)
    # The first ends only when the second has run: no order and no lock between them.
    try:
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            waits = pool.submit(instance.cordon, "exec", sandbox, "--wall", "40s", "--", "sh", "-c",
                                "until [ -e go ]; do sleep 0.05; done; echo went")
            assert instance.cordon("exec", sandbox, "--", "touch", "go").status == 0
            assert waits.result().out == b"went\n"
        outputs = []
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            for n in range(16):
                outputs.append(pool.submit(instance.cordon, "exec", sandbox, "--", "sh", "-c",
                                           f"echo {n}; echo e{n} >&2; exit {n}"))
        for n, done in enumerate(outputs):
            done = done.result()
            assert (done.status, done.out, done.err) == (n, b"%d\n" % n, b"e%d\n" % n)
    finally:
        instance.release(sandbox)


def test_sandboxes_at_the_same_time(on):
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        runs = [pool.submit(run, on, "--", "python3", "-c", f"print({n} * {n})") for n in range(12)]
    assert [int(r.result().out) for r in runs] == [n * n for n in range(12)]


def test_a_grandchild_that_keeps_the_pipe_does_not_hold_the_exec(on):
    done = run(on, "--wall", "30s", "--", "sh", "-c", "sleep 300 & echo done")
    assert (done.status, done.out) == (0, b"done\n")


def test_what_an_exec_leaves_running_is_said_and_ends_with_the_sandbox(service):
    sandbox = service.acquire(service.runtime)
    first = service.cordon("exec", "--json", sandbox, "--", "sh", "-c", "setsid sleep 317 & exit 0").json
    second = service.cordon("exec", "--json", sandbox, "--", "true").json
    assert first["exit_code"] == second["exit_code"] == 0
    assert processes_with(b"sleep\x00317"), "what an exec left running stays until release"
    assert second["verdict"]["shared"] or second["verdict"].get("note"), second["verdict"]
    service.release(sandbox)
    assert not processes_with(b"sleep\x00317")


def test_ls_shows_names_without_tokens(on):
    instance, runtime = on
    sandbox = instance.acquire(runtime)
    name, token = sandbox.split(".")
    listing = instance.cordon("ls")
    assert name in listing.out.decode()
    assert token not in listing.out.decode()
    instance.release(sandbox)
    assert name not in instance.cordon("ls").out.decode()


def test_runtimes_are_listed_with_what_this_host_can_do(service):
    listing = service.cordon("runtimes").out.decode()
    assert all(name in listing for name in ["jail", "runc", "host"])
    assert "1." in listing  # the version of runc


@pytest.mark.host
def test_host_runtime_says_that_it_is_no_sandbox(host):
    assert "host" in host.cordon("runtimes").out.decode()
    text = host.cordon("runtimes", "--json").json
    runtimes = text["runtimes"] if isinstance(text, dict) else text
    assert [r["is_sandbox"] for r in runtimes if r["name"] == "host"] == [False]


def test_help_shows_examples(service):
    for subcommand in ["up", "run", "acquire", "exec", "release", "ls", "runtimes", "escape", "bench"]:
        done = service.cordon(subcommand, "--help")
        assert done.status == 0
        assert b"cordon " + subcommand.encode() in done.out, subcommand


def test_output_reaches_a_client_while_the_program_runs(on):
    instance, runtime = on
    process = instance.popen("run", "--runtime", runtime, "--wall", "60s", "--",
                             "sh", "-c", "echo first; read line; echo got $line",
                             stdin=subprocess.PIPE)
    assert process.stdout.readline() == b"first\n"
    process.stdin.write(b"word\n")
    process.stdin.close()
    assert process.stdout.read() == b"got word\n"
    assert process.wait(30) == 0
    process.stdout.close()
    process.stderr.close()


def test_nothing_of_the_caller_is_inherited(service):
    done = service.cordon("run", "--", "python3", "-c",
                       "import os; print(sorted(int(n) for n in os.listdir('/proc/self/fd')))")
    # 3 is the directory being listed.
    assert done.out == b"[0, 1, 2, 3]\n"
    inside = service.cordon("run", "--", "uname", "-n").out.decode().strip()
    assert inside and inside != os.uname().nodename
