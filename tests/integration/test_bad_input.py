"""Every kind of bad input gets a clear status and leaves nothing behind."""
import os
import stat
import sys

import grpc
import pytest

import support
from support import Refused, refused, v1

# ---------------------------------------------------------------- argv, env, cwd


@pytest.mark.parametrize("argv", [[], [b""], [b"a\0b"], [b"true", b"x\0y"]],
                         ids=["empty", "empty-name", "nul-in-name", "nul-in-argument"])
def test_argv_that_no_program_can_have(api, argv):
    try:
        ended = api.run(argv)
    except Refused as error:
        assert error.code == "INVALID_ARGUMENT" and error.reason, error
    else:  # an empty name may also be a name that is not found
        assert argv == [b""] and ended.result.WhichOneof("status") == "not_started", ended.result


def test_argv_of_two_mebibytes(api):
    error = refused(api.run, [b"true", *[b"x" * 100_000] * 21])
    assert error.code in ("INVALID_ARGUMENT", "RESOURCE_EXHAUSTED") and error.reason, error


def test_one_argument_of_two_mebibytes(api):
    error = refused(api.run, [b"true", b"x" * (2 << 20)])
    assert error.code in ("INVALID_ARGUMENT", "RESOURCE_EXHAUSTED") and error.reason, error


def test_ten_thousand_arguments(api):
    error = refused(api.run, [b"true", *[b"x"] * 10_000])
    assert error.code == "INVALID_ARGUMENT" and error.reason, error


def test_arguments_up_to_the_bound_arrive(api):
    ended = api.run([b"sh", b"-c", b"echo $#", b"sh", *[b"x"] * 4092])
    assert (ended.result.exit_code, ended.out) == (0, b"4092\n")
    ended = api.run([b"sh", b"-c", b"printf %s \"$1\" | wc -c", b"sh", b"y" * 120_000])
    assert (ended.result.exit_code, ended.out.strip()) == (0, b"120000")


def test_a_message_larger_than_the_service_takes(api):
    error = refused(api.run, [b"true", b"x" * (32 << 20)])
    assert error.code in ("RESOURCE_EXHAUSTED", "INVALID_ARGUMENT"), error


@pytest.mark.parametrize("entry", [b"NOEQUALS", b"=value", b"A\0B=c", b""],
                         ids=["no-equals", "no-name", "nul", "empty"])
def test_a_malformed_environment_entry(api, entry):
    error = refused(api.run, ["true"], env=[b"GOOD=1", entry])
    assert error.code == "INVALID_ARGUMENT" and error.reason, error


def test_an_environment_too_large(api):
    error = refused(api.run, ["true"], env=[b"K%d=" % n + b"v" * 100_000 for n in range(30)])
    assert error.code in ("INVALID_ARGUMENT", "RESOURCE_EXHAUSTED") and error.reason, error


@pytest.mark.parametrize("argv, errno, status", [
    (["there-is-no-such-program"], 2, 127),
    (["/usr/bin/there-is-none"], 2, 127),
    (["/usr/share"], 13, 126),          # a directory
    (["/etc/passwd"], 13, 126),         # not executable
    (["./relative-that-is-not-there"], 2, 127),
])
def test_a_program_that_cannot_be_started(service, api, argv, errno, status):
    ended = api.run(argv)
    assert ended.result.WhichOneof("status") == "not_started", ended.result
    failure = ended.result.not_started
    assert failure.error_number == errno and failure.step and failure.message, failure
    done = service.cordon("run", "--", *argv)
    assert done.status == status
    assert done.err.strip(), "it says why"


@pytest.mark.parametrize("cwd", ["/there/is/none", "/etc/passwd", "no-such-relative"])
def test_a_working_directory_that_does_not_exist(service, api, cwd):
    ended = api.run(["true"], cwd=cwd.encode())
    assert ended.result.WhichOneof("status") == "not_started", ended.result
    assert ended.result.not_started.step == "cwd"
    assert service.cordon("run", "--cwd", cwd, "--", "true").status in (125, 126, 127)


def test_a_working_directory_with_nul(api):
    assert refused(api.run, ["true"], cwd=b"/work\0/x").code == "INVALID_ARGUMENT"


@pytest.mark.parametrize("user", ["nobody-of-that-name", "-1", "4294967295", "65536", "1:2:3", "a\0b",
                                  "65000"])
def test_a_user_that_cannot_be(api, user):
    try:
        ended = api.run(["true"], user=user)
    except Refused as error:
        assert error.code == "INVALID_ARGUMENT" and error.reason, error
    else:
        assert ended.result.WhichOneof("status") == "not_started", ended.result
        assert ended.result.not_started.step == "user", ended.result


# ---------------------------------------------------------------- limits, names

LIMIT_FIELDS = ["memory_bytes", "pids", "cpu_millis", "cpu_time_ms", "wall_ms", "file_size_bytes",
                "files", "disk_bytes", "tmp_bytes", "shm_bytes", "output_bytes"]


@pytest.mark.parametrize("value", [0, -1, -(1 << 63)])
@pytest.mark.parametrize("field", LIMIT_FIELDS)
def test_a_limit_of_zero_or_less(api, field, value):
    error = refused(api.acquire, limits={field: value})
    assert error.code == "INVALID_ARGUMENT", error
    assert error.reason == ("LIMIT_ZERO" if value == 0 else "LIMIT_NEGATIVE"), error


@pytest.mark.parametrize("field", ["memory_bytes", "pids", "cpu_millis", "cpu_time_ms", "wall_ms",
                                   "files", "disk_bytes", "tmp_bytes", "shm_bytes"])
def test_a_limit_below_what_is_of_any_use(api, field):
    error = refused(api.acquire, limits={field: 1})
    assert (error.code, error.reason) == ("INVALID_ARGUMENT", "LIMIT_TOO_LOW"), error


@pytest.mark.parametrize("method", ["Acquire", "Release", "List", "Inspect", "Runtimes"])
def test_bytes_that_are_no_request(api, method):
    call = api.channel.unary_unary(f"/cordon.v1.Agents/{method}", request_serializer=lambda b: b,
                                   response_deserializer=lambda b: b)
    with pytest.raises(grpc.RpcError) as caught:
        call(b"\x0a\xff\xff", timeout=30)
    error = Refused(caught.value)
    assert (error.code, error.reason) == ("INVALID_ARGUMENT", "MALFORMED_REQUEST"), error


# A host has no largest file size unless its own RLIMIT_FSIZE says so.
@pytest.mark.parametrize("field", [f for f in LIMIT_FIELDS if f != "file_size_bytes"])
def test_a_limit_over_the_hosts(api, field):
    error = refused(api.acquire, limits={field: (1 << 63) - 1})
    assert error.code in ("INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"), error
    assert error.reason in ("LIMIT_TOO_HIGH", "SCRATCH_EXCEEDS_MEMORY"), error


def test_scratch_that_does_not_fit_the_memory(api):
    error = refused(api.acquire, limits={"memory_bytes": 128 << 20, "disk_bytes": 256 << 20})
    assert error.reason == "SCRATCH_EXCEEDS_MEMORY", error


def test_an_exec_cannot_widen_its_sandboxs_limits(api):
    acquired = api.acquire(limits={"cpu_time_ms": 1000, "wall_ms": 5000, "files": 64})
    for field, value in [("cpu_time_ms", 2000), ("wall_ms", 6000), ("files", 65)]:
        error = refused(api.exec, acquired.id, ["true"], limits=v1.Limits(**{field: value}))
        assert error.code == "INVALID_ARGUMENT" and error.reason == "EXEC_LIMIT_TOO_WIDE", error
    assert api.exec(acquired.id, ["true"], limits=v1.Limits(files=32)).result.exit_code == 0
    api.release(acquired.id)


@pytest.mark.parametrize("text", ["", "12X", "-1", "0", "1e3M", "99999999999999999999G", "M", "1.5.2M",
                                  " 1M", "0x10"])
def test_limit_texts_of_the_command_line(service, text):
    done = service.cordon("run", f"--memory={text}", "--", "true")
    assert done.status == 125, done
    assert done.err.strip(), "it says why"


def test_an_unknown_runtime(service, api):
    error = refused(api.run, ["true"], runtime="no-such-runtime")
    assert error.reason == "UNKNOWN_RUNTIME", error
    done = service.cordon("run", "--runtime", "no-such-runtime", "--", "true")
    assert done.status == 125 and done.err.strip()


@pytest.mark.parametrize("hostname", ["a" * 64, "with space", "-x;y", "a\0b", "dots.are.not"])
def test_a_hostname_that_is_none(api, hostname):
    error = refused(api.acquire, hostname=hostname)
    assert error.code == "INVALID_ARGUMENT" and error.reason == "BAD_NAME", error


# ---------------------------------------------------------------- ids


@pytest.mark.parametrize("sandbox", [
    "", ".", "sb-aaaaaaaaaa", "sb-aaaaaaaaaa.", ".00000000000000000000000000000000",
    "sb-aaaaaaaaaa.00000000000000000000000000000000", "../../etc.00000000000000000000000000000000",
    "x" * 100_000, "sb-\u00e4.0", "sb-a\n.0"])
def test_an_id_that_is_none(api, sandbox):
    for call in [lambda: api.exec(sandbox, ["true"]), lambda: api.release(sandbox),
                 lambda: api.call("Inspect", v1.InspectRequest(id=sandbox))]:
        error = refused(call)
        assert error.code in ("NOT_FOUND", "INVALID_ARGUMENT") and error.reason, error


def test_a_wrong_token(api):
    acquired = api.acquire()
    name, token = acquired.id.split(".")
    for wrong in ["0" * 32, token[:-1], token.upper() if token != token.upper() else "1" * 32,
                  token + "0"]:
        error = refused(api.exec, f"{name}.{wrong}", ["true"])
        assert error.code in ("NOT_FOUND", "INVALID_ARGUMENT"), error
    assert api.exec(acquired.id, ["true"]).result.exit_code == 0
    api.release(acquired.id)


def test_a_sandbox_that_is_gone(service, api):
    acquired = api.acquire()
    api.release(acquired.id)
    assert refused(api.exec, acquired.id, ["true"]).reason in ("NO_SUCH_SANDBOX", "SANDBOX_GONE")
    assert service.cordon("exec", acquired.id, "--", "true").status == 125


def test_another_clients_sandbox(service):
    """Neither seen nor used by another uid, even with its token."""
    sandbox = service.acquire(service.runtime)
    name = sandbox.split(".")[0]
    stranger = support.as_uid(1234)
    for arguments in [("exec", sandbox, "--", "true"), ("release", sandbox)]:
        done = service.cordon(*arguments, prefix=stranger)
        assert done.status == 125, done
    assert name not in service.cordon("ls", prefix=stranger).out.decode()
    assert name in service.cordon("ls").out.decode()
    # The stranger's own work.
    theirs = service.cordon("acquire", "--json", prefix=stranger).json["id"]
    assert theirs.split(".")[0] not in service.cordon("ls").out.decode()
    assert service.cordon("exec", theirs, "--", "true").status == 125
    assert service.cordon("release", theirs, prefix=stranger).status == 0
    service.release(sandbox)


# ---------------------------------------------------------------- the API's order of messages


def answer(call):
    """Runs a stream to its end; the status code's name ("OK" too)."""
    try:
        for _ in call:
            pass
        return "OK"
    except grpc.RpcError as error:
        return error.code().name


def test_messages_in_a_wrong_order(api):
    acquired = api.acquire()
    run = v1.ExecRequest(run=v1.RunStart(sandbox=api.spec(), exec=v1.ExecSpec(argv=[b"true"])))
    start = v1.ExecRequest(start=v1.ExecStart(id=acquired.id, exec=v1.ExecSpec(argv=[b"sleep", b"60"])))
    nothing = v1.ExecRequest()
    stdin = v1.ExecRequest(stdin=b"x")
    for method, requests in [
            (api.stub.Exec, []), (api.stub.Exec, [nothing]), (api.stub.Exec, [stdin]),
            (api.stub.Exec, [run]), (api.stub.Run, [start]), (api.stub.Run, []),
            (api.stub.Exec, [start, start]), (api.stub.Exec, [start, nothing])]:
        assert answer(method(iter(requests), timeout=60)) == "INVALID_ARGUMENT", requests
    api.release(acquired.id)


@pytest.mark.parametrize("number", [0, -1, 65, 1 << 30])
def test_a_signal_that_is_none(api, number):
    acquired = api.acquire()
    start = v1.ExecRequest(start=v1.ExecStart(id=acquired.id, exec=v1.ExecSpec(argv=[b"sleep", b"60"])))
    assert answer(api.stub.Exec(iter([start, v1.ExecRequest(signal=number)]), timeout=60)) == \
        "INVALID_ARGUMENT"
    api.release(acquired.id)


def test_stdin_for_a_program_that_has_none(api):
    ended = api.run(["cat"], requests=[v1.ExecRequest(close_stdin=True)])
    assert (ended.result.exit_code, ended.out) == (0, b"")


def test_stdin_messages_larger_than_allowed(api):
    error = refused(api.run, ["cat"], stdin=True, requests=[v1.ExecRequest(stdin=b"x" * ((1 << 20) + 1))])
    assert error.code in ("INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"), error


# ---------------------------------------------------------------- from inside


def test_output_that_is_not_utf8(on):
    instance, runtime = on
    data = bytes(range(256)) * 10
    done = instance.cordon("run", "--runtime", runtime, "--", "python3", "-c",
                           "import sys; sys.stdout.buffer.write(bytes(range(256)) * 10)")
    assert done.out == data


def test_control_characters_of_a_program_do_not_reach_the_verdict_line(service):
    done = service.cordon("run", "--wall", "1s", "--", "sh", "-c", "exec sleep 300")
    line = done.err.splitlines()[-1]
    assert b"wall_clock" in line
    assert all(byte >= 32 for byte in line)


def test_a_program_cannot_reach_the_stream_from_inside(service):
    """No fd of the agent is inherited, and /proc/PID/fd of it can't be opened."""
    program = """
import os
opened = []
# The agent is pid 1 and our parent, shown or not.
for pid in {'1', str(os.getppid()), *filter(str.isdigit, os.listdir('/proc'))}:
    if int(pid) in (0, os.getpid()): continue
    for what in ['fd', 'mem', 'environ', 'root', 'cwd', 'exe', 'maps']:
        path = f'/proc/{pid}/{what}'
        try:
            os.listdir(path) if what in ('fd', 'root', 'cwd') else open(path, 'rb+' if what == 'mem' else 'rb')
            opened.append(path)
        except OSError: pass
print(opened)
"""
    for user in ["user", "root"]:
        done = service.cordon("run", "--user", user, "--", "python3", "-c", program)
        assert done.out == b"[]\n", (user, done)


def test_the_sockets_of_an_instance_are_not_for_everyone():
    with support.Instance() as instance:
        for name in ["agents.sock", "broker.sock"]:
            mode = (instance.state / name).stat()
            assert stat.S_ISSOCK(mode.st_mode)
            assert mode.st_mode & 0o007 == 0, name
        done = instance.cordon("ls", prefix=support.as_uid(1234))
        assert done.status == 125
        assert done.err.strip()
