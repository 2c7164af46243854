"""A vm-agent that lies or says nothing: the frontend and the broker survive it."""
import contextlib
import functools
import pathlib
import shutil
import struct
import subprocess
import tempfile
import time

import pytest

import support
from support import Api, Refused, v1

BIG = 2**64 - 1

# Text of a GuestMessage (ipc/guest.capnp) each; exec 1 is a sandbox's first.
MESSAGES = {
    "hello": "(hello = (version = 1))",
    "hello-2": "(hello = (version = 77))",
    "started": "(started = 1)",
    "started-99": "(started = 99)",
    "output": '(output = (exec = 1, stream = stdout, offset = 0, bytes = "lie\\n"))',
    "output-99": '(output = (exec = 99, stream = stdout, offset = 0, bytes = "lie\\n"))',
    "output-far": '(output = (exec = 1, stream = stdout, offset = 100000, bytes = "far\\n"))',
    "output-wrap": f'(output = (exec = 1, stream = stdout, offset = {BIG}, bytes = "wrap"))',
    "output-empty": "(output = (exec = 1, stream = stdout, offset = 0))",
    "output-large": f'(output = (exec = 1, stream = stdout, offset = 0, bytes = "{"x" * 61440}"))',
    "credit": f"(stdinCredit = (exec = 1, bytes = {2**32 - 1}))",
    "exited": "(exited = (exec = 1, signaled = false, code = 0))",
    "exited-4": "(exited = (exec = 1, code = 0, stdout = (total = 4)))",
    "exited-99": "(exited = (exec = 99, signaled = false, code = 0))",
    "exited-wild": f"(exited = (exec = 1, signaled = true, code = {2**32 - 1}, userUs = {BIG}, "
                   f"systemUs = {BIG}, maxRssBytes = {BIG}, wallUs = {BIG}, "
                   f"stdout = (total = {BIG}, dropped = {BIG}, left = {BIG}), leftRunning = {2**32 - 1}, "
                   f'scratch = [(path = "/work", totalBytes = {BIG}, freeBytes = {BIG})]))',
    "exited-text": '(exited = (exec = 1, code = 0, fileAtLimit = "\\x1b[2J\\xff\\xfe/work", '
                   'scratch = [(path = "\\x1b]0;x\\x07")]))',
    "exited-killed": "(exited = (exec = 1, signaled = true, code = 9))",
    "exited-sigsys": "(exited = (exec = 1, signaled = true, code = 31))",
    "failed": "(failed = (exec = 1, errno = 2, step = lookup))",
}


@pytest.fixture
def parts(request):
    """An instance whose agent is the fake one, in the mode of the parameter."""
    directory = pathlib.Path(tempfile.mkdtemp(prefix="cordon-guest-"))
    agent = directory / "agent"
    program = (pathlib.Path(__file__).parent / "fake_agent.py").read_text()
    agent.write_text(program.replace("@HERE@", str(directory)))
    agent.chmod(0o755)
    (directory / "mode").write_text(request.param)
    for name, message in encoded_messages().items():
        (directory / name).write_bytes(message)
    instance = support.Instance("--allow-host-runtime", "--vm-agent", agent)
    try:
        instance.start()
        instance.first = (instance.broker, instance.agents)
        yield instance
    finally:
        instance.dispose()
        shutil.rmtree(directory)


@functools.cache
def encoded_messages():
    encoded = {}
    for name, text in MESSAGES.items():
        run = subprocess.run(["capnp", "encode", "-I/usr/include",
                              str(support.TOP / "ipc/guest.capnp"), "GuestMessage"],
                             input=text.encode(), capture_output=True, timeout=30)
        assert run.returncode == 0, (name, run.stderr)
        encoded[name] = run.stdout
    return encoded


# An agent for a sandbox, which has nothing but its own file: it greets on every
# stream, waits for the start and says what it was compiled with.
LIAR = """
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
static const unsigned char hello[] = {%s}, lie[] = {%s};
int main(void) {
  for (;;) {
    char data[65536], byte;
    union { char room[CMSG_SPACE(8 * sizeof(int))]; struct cmsghdr align; } extra;
    struct iovec part = {data, sizeof data};
    struct msghdr message = {0, 0, &part, 1, extra.room, sizeof extra.room, 0};
    if (recvmsg(0, &message, 0) <= 0) return 0;
    struct cmsghdr* first = CMSG_FIRSTHDR(&message);
    if (data[0] != 2 || !first) continue; /* a stream, ipc/control.h */
    int stream = *(int*)CMSG_DATA(first);
    struct pollfd ready = {stream, POLLIN, 0};
    send(stream, hello, sizeof hello, MSG_NOSIGNAL);
    if (poll(&ready, 1, -1) < 0 || recv(stream, &byte, 1, 0) != 1) continue;
    send(stream, lie, sizeof lie, MSG_NOSIGNAL);
  }
}
"""


@contextlib.contextmanager
def liar(message, runtime):
    """An instance whose agent answers every start with this message."""
    directory = pathlib.Path(tempfile.mkdtemp(prefix="cordon-liar-"))
    try:
        frames = [struct.pack("<II", len(encoded_messages()[m]), 0x31445243) + encoded_messages()[m]
                  for m in ("hello", message)]
        source = LIAR % tuple(",".join(map(str, f)) for f in frames)
        subprocess.run(["cc", "-static", "-O1", "-x", "c", "-", "-o", directory / "agent"],
                       input=source.encode(), check=True, timeout=60)
        with support.Instance("--vm-agent", directory / "agent", runtime=runtime) as instance:
            yield instance
    finally:
        shutil.rmtree(directory)


def run(parts, wall_ms=3000, runtime="host"):
    with Api(parts.address) as client:
        return client.run(["anything"], sandbox=client.spec(runtime, limits={
            "wall_ms": wall_ms, "output_bytes": 1 << 20, "file_size_bytes": 1 << 20}), timeout=60)


@contextlib.contextmanager
def refused_as(reason):
    """A refusal for this reason and no other."""
    with pytest.raises(Refused) as refused:
        yield
    assert refused.value.reason == reason, refused.value


def alive(parts):
    """Neither part was started again."""
    assert (parts.broker, parts.agents) == parts.first, parts.tail()


def assert_memory_is_small(parts):
    family = [parts.broker, parts.agents]
    large = [support.describe_process(p) for p in family if support.resident_kib(p) > 300_000]
    assert not large


@pytest.mark.host
@pytest.mark.parametrize("parts", ["good"], indirect=True)
def test_the_fake_agent_can_play_a_good_one(parts):
    """Else the others would pass for a wrong reason."""
    ended = run(parts)
    assert (ended.result.exit_code, ended.out) == (0, b"lie\n"), parts.tail()
    alive(parts)


BROKEN = ["garbage-before-hello", "output-before-hello", "hello-of-another-version", "garbage",
          "oversized", "odd-length", "zero-length", "wild-pointers", "started-twice",
          "failed-after-started", "hello-again", "another-exec", "offset-backwards",
          "offset-at-the-end", "endless-credit", "endless-output", "endless-empty-output",
          "totals-that-lie"]


@pytest.mark.host
@pytest.mark.parametrize("parts", BROKEN, indirect=True)
def test_a_guest_that_breaks_the_protocol(parts):
    """The call ends as that, before its deadline: no success is invented."""
    with refused_as("GUEST_PROTOCOL"):
        run(parts)
    alive(parts)
    assert_memory_is_small(parts)


@pytest.mark.host
@pytest.mark.parametrize("parts", ["truncated", "eof", "dies"], indirect=True)
def test_a_guest_whose_stream_ends(parts):
    ended = run(parts)
    verdict = ended.result.verdict
    assert (verdict.control, verdict.stopped) == (v1.SANDBOX_LOST, True), ended.result
    assert ended.result.WhichOneof("status") is None, ended.result
    alive(parts)


@pytest.mark.host
@pytest.mark.parametrize("parts", ["hello-that-lingers"], indirect=True)
def test_what_a_guest_sent_is_closed_beside_the_loop(parts):
    """A released sandbox's stream was never read: the broker closes all of it."""
    with Api(parts.address) as client:
        acquired = client.acquire("host")
        began = time.monotonic()
        client.release(acquired.id)
        client.call("List", v1.ListRequest())
        assert time.monotonic() - began < 15
    alive(parts)


@pytest.mark.host
@pytest.mark.parametrize("parts", ["exited-first"], indirect=True)
def test_an_end_implies_the_start(parts):
    ended = run(parts)
    assert (ended.result.exit_code, ended.out) == (0, b""), ended.result
    alive(parts)


@pytest.mark.host
@pytest.mark.parametrize("parts", ["exited-twice", "output-after-exited"], indirect=True)
def test_a_guest_that_goes_on_after_its_end(parts):
    """Its first end counts, or the exec is refused when the rest came with it."""
    try:
        ended = run(parts)
        assert (ended.result.exit_code, ended.out) == (0, b""), ended.result
    except Refused as error:
        assert error.reason == "GUEST_PROTOCOL", error
    alive(parts)


@pytest.mark.host
@pytest.mark.parametrize("parts", ["started-only"], indirect=True)
def test_a_guest_that_never_ends(parts):
    ended = run(parts)
    verdict = ended.result.verdict
    assert (verdict.control, verdict.stopped) == (v1.WALL_CLOCK, True), ended.result
    assert {e.source for e in verdict.evidence} == {v1.FRONTEND}
    alive(parts)


@pytest.mark.host
@pytest.mark.parametrize("parts", ["silent"], indirect=True)
def test_a_guest_that_never_greets(parts):
    with refused_as("RUNTIME_TIMEOUT"):
        run(parts)
    alive(parts)


@pytest.mark.host
@pytest.mark.parametrize("parts", ["never-answers"], indirect=True)
def test_a_guest_that_never_answers(parts):
    """It is killed at its deadline, or 10 s after the start, and given up 7 s later."""
    assert run(parts, wall_ms=1500).result.verdict.control == v1.WALL_CLOCK
    with refused_as("GUEST_PROTOCOL"):
        run(parts, wall_ms=60_000)
    alive(parts)


@pytest.mark.host
@pytest.mark.parametrize("parts", ["text-that-is-no-text"], indirect=True)
def test_texts_that_are_none(parts):
    """They are shown as what they are, and as the agent's word."""
    verdict = run(parts).result.verdict
    assert (verdict.control, verdict.stopped) == (v1.FILE_SIZE, False), verdict
    assert {e.source for e in verdict.evidence} == {v1.AGENT}, verdict
    shown = [verdict.note, *(e.counter for e in verdict.evidence)]
    assert any("\\x1b[2J\\xff\\xfe/work" in text for text in shown), verdict
    assert not any(ord(c) < 32 for text in shown for c in text), verdict
    alive(parts)


# In a sandbox, where the kernel counts, what an agent claims must not become the
# kernel's word: (claim, control, whether it says that this ended the program).
CLAIMS = [("exited-killed", v1.NONE, False), ("exited-sigsys", v1.SYSCALL, True),
          ("exited-text", v1.FILE_SIZE, False)]


@pytest.mark.parametrize("claim,control,stopped", CLAIMS)
def test_a_claim_is_never_the_kernels_word(runtime, claim, control, stopped):
    with liar(claim, runtime) as instance:
        verdict = run(instance, runtime="").result.verdict
    assert (verdict.control, verdict.stopped) == (control, stopped), verdict
    assert {e.source for e in verdict.evidence} <= {v1.AGENT}, verdict
    assert bool(verdict.evidence) == (control != v1.NONE), verdict
