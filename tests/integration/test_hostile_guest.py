"""A vm-agent that lies or says nothing: the frontend and the broker survive it."""
import functools
import pathlib
import shutil
import subprocess
import tempfile

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


def run(parts, wall_ms=3000):
    with Api(parts.address) as client:
        return client.run(["anything"], sandbox=client.spec(
            "host", limits={"wall_ms": wall_ms, "output_bytes": 1 << 20}), timeout=60)


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


@pytest.mark.host
@pytest.mark.parametrize("parts", ["silent", "garbage-before-hello", "output-before-hello",
                                   "hello-of-another-version"], indirect=True)
def test_a_guest_that_does_not_greet_properly(parts):
    try:
        ended = run(parts)
        assert ended.result.verdict.control in (v1.SANDBOX_LOST, v1.WALL_CLOCK), ended.result
    except Refused as error:
        assert error.reason, error
    alive(parts)


BROKEN = ["garbage", "oversized", "odd-length", "zero-length", "wild-pointers", "truncated", "eof",
          "dies", "started-twice", "failed-after-started", "hello-again",
          "another-exec", "offset-backwards", "offset-at-the-end", "endless-credit"]


@pytest.mark.host
@pytest.mark.parametrize("parts", BROKEN, indirect=True)
def test_a_guest_that_breaks_the_protocol(parts):
    """The exec ends, within its deadline, as lost: no success is invented."""
    try:
        ended = run(parts)
        assert ended.result.verdict.control in (v1.SANDBOX_LOST, v1.WALL_CLOCK), ended.result
    except Refused as error:
        assert error.reason, error
    alive(parts)
    assert_memory_is_small(parts)


@pytest.mark.host
@pytest.mark.parametrize("parts", ["exited-first", "exited-twice", "output-after-exited"],
                         indirect=True)
def test_a_guest_whose_end_is_out_of_order(parts):
    """Its first end counts, or the exec is refused: never a second result."""
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
@pytest.mark.parametrize("parts", ["never-answers"], indirect=True)
def test_a_guest_that_never_answers(parts):
    try:
        assert run(parts).result.verdict.control == v1.WALL_CLOCK
    except Refused as error:
        assert error.reason == "GUEST_PROTOCOL", error
    alive(parts)


@pytest.mark.host
@pytest.mark.parametrize("parts", ["endless-output", "endless-empty-output"], indirect=True)
def test_a_guest_that_sends_output_without_end(parts):
    try:
        ended = run(parts)
        assert len(ended.out) <= 2 << 20
        assert ended.result.verdict.control in (v1.WALL_CLOCK, v1.SANDBOX_LOST), ended.result
    except Refused as error:
        assert error.reason, error
    alive(parts)
    assert_memory_is_small(parts)


@pytest.mark.host
@pytest.mark.parametrize("parts", ["totals-that-lie", "text-that-is-no-text"], indirect=True)
def test_numbers_and_texts_that_cannot_be(parts):
    """They are claims: refused or reported as the agent's, never believed to be sane."""
    try:
        ended = run(parts)
    except Refused as error:
        assert error.reason, error
    else:
        verdict = ended.result.verdict
        assert all(e.source != v1.KERNEL for e in verdict.evidence), verdict
        assert 0 <= ended.result.signal <= 64
        assert "\x1b" not in verdict.note
    alive(parts)
