"""A vm-agent that lies or says nothing: the frontend and the broker survive it.

The parts are started by hand, since `cordon up` never takes another agent.
"""
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile

import pytest

import support
from support import Api, Refused, v1, wait_until

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
    "exited-99": "(exited = (exec = 99, signaled = false, code = 0))",
    "exited-wild": f"(exited = (exec = 1, signaled = true, code = {2**32 - 1}, userUs = {BIG}, "
                   f"systemUs = {BIG}, maxRssBytes = {BIG}, wallUs = {BIG}, "
                   f"stdout = (total = {BIG}, dropped = {BIG}, left = {BIG}), leftRunning = {2**32 - 1}, "
                   f'scratch = [(path = "/work", totalBytes = {BIG}, freeBytes = {BIG})]))',
    "exited-text": '(exited = (exec = 1, code = 0, fileAtLimit = "\\x1b[2J\\xff\\xfe/work", '
                   'scratch = [(path = "\\x1b]0;x\\x07")]))',
    "failed": "(failed = (exec = 1, errno = 2, step = lookup))",
}


class Parts:
    """cordon-broker with the fake agent, and cordon-agents, of one uid."""

    def __init__(self, mode):
        self.state = pathlib.Path(tempfile.mkdtemp(prefix="cordon-guest-"))
        shutil.copy(pathlib.Path(__file__).parent / "fake_agent.py", self.state / "agent")
        (self.state / "agent").chmod(0o755)
        (self.state / "mode").write_text(mode)
        for name, text in MESSAGES.items():
            encoded = subprocess.run(
                ["capnp", "encode", "-I/usr/include", str(support.TOP / "ipc/guest.capnp"),
                 "GuestMessage"], input=text.encode(), capture_output=True, timeout=30)
            assert encoded.returncode == 0, (name, encoded.stderr)
            (self.state / name).write_bytes(encoded.stdout)
        self.log = open(self.state / "log", "ab")
        self.parts = []
        self._activate("broker.sock", "broker", support.LIBEXEC / "cordon-broker", "--state",
                       self.state / "broker", "--agents-uid", os.geteuid(), "--allow-host-runtime",
                       "--vm-agent", self.state / "agent")
        self._activate("agents.sock", "agents", support.LIBEXEC / "cordon-agents", "--broker",
                       self.state / "broker.sock", "--one-trust-zone")
        self.address = f"unix:{self.state}/agents.sock"

    def _activate(self, path, name, *command):
        self.parts.append(subprocess.Popen(
            ["systemd-socket-activate", f"--listen={self.state}/{path}", f"--fdname={name}",
             *map(str, command)], stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL))
        wait_until(lambda: (self.state / path).exists(), f"{path} is there")

    def text(self):
        return "\n".join(support.read_text(self.state / "log").splitlines()[-30:])

    def close(self):
        agents = [p for p in support.processes_with(str(self.state / "agent"))]
        for part in reversed(self.parts):
            part.send_signal(signal.SIGTERM)
        statuses = [part.wait(30) for part in self.parts]
        text = self.text()
        self.log.close()
        shutil.rmtree(self.state)
        assert statuses == [0, 0], text
        left = [support.describe_process(p) for p in agents
                if support.process_state(p) not in ("", "Z")]
        assert not left, left


@pytest.fixture
def parts(request):
    made = Parts(request.param)
    try:
        yield made
    finally:
        made.close()


def run(parts, wall_ms=3000):
    with Api(parts.address) as client:
        # Activation starts a part at its first connection.
        return client.run(["anything"], sandbox=client.spec(
            "host", limits={"wall_ms": wall_ms, "output_bytes": 1 << 20}), timeout=60)


def alive(parts):
    assert [part.poll() for part in parts.parts] == [None, None], parts.text()


def assert_memory_is_small(parts):
    family = [p for part in parts.parts for p in [part.pid, *support.descendants(part.pid)]]
    large = [support.describe_process(p) for p in family if support.resident_kib(p) > 300_000]
    assert not large


@pytest.mark.host
@pytest.mark.parametrize("parts", ["good"], indirect=True)
def test_the_fake_agent_can_play_a_good_one(parts):
    """Else the others would pass for a wrong reason."""
    ended = run(parts)
    assert (ended.result.exit_code, ended.out) == (0, b"lie\n"), parts.text()
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
          "dies", "exited-first", "started-twice", "failed-after-started", "hello-again",
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
@pytest.mark.parametrize("parts", ["exited-twice", "output-after-exited"], indirect=True)
def test_a_guest_that_goes_on_after_the_end(parts):
    """The first end counts."""
    ended = run(parts)
    assert ended.result.exit_code == 0
    assert ended.out == b""
    alive(parts)


@pytest.mark.host
@pytest.mark.parametrize("parts", ["never-answers"], indirect=True)
def test_a_guest_that_never_answers(parts):
    ended = run(parts)
    verdict = ended.result.verdict
    assert (verdict.control, verdict.stopped) == (v1.WALL_CLOCK, True), ended.result
    assert {e.source for e in verdict.evidence} == {v1.FRONTEND}
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
