"""SIGKILL between any two steps of cordon-jailer, of it and of the broker behind it.

The jailer is the one of jailer/stops_testing.cc, which stops for good behind a
step of docs/jailer.md and says so in its name.
"""
import concurrent.futures
import os
import pathlib
import shutil
import signal
import tempfile

import pytest

import support
from support import Refused, wait_until

STOPS = support.ROOT.parent / "jailer/cordon-jailer-stops"
STEPS = range(16)  # 0: before the first; from 5 on pid 1; 15: only the exec is missing

pytestmark = pytest.mark.skipif(not STOPS.exists(), reason="the test build of the jailer is not here")


class Stops:
    """An instance whose jailer stops where it is told to."""

    def __init__(self):
        self.libexec = pathlib.Path(tempfile.mkdtemp(prefix="cordon-stops-"))
        self.libexec.chmod(0o755)
        for name in ["cordon-broker", "cordon-agents", "vm-agent"]:
            shutil.copy(support.LIBEXEC / name, self.libexec)
        shutil.copy(STOPS, self.libexec / "cordon-jailer")
        self.instance = support.Instance("--libexec", self.libexec)

    def stop_after(self, step):
        """None: nowhere."""
        path = self.libexec / "stop-after"
        path.unlink(missing_ok=True)
        if step is not None:
            path.write_text(str(step))

    def stopped(self, step):
        """The process that stands behind this step."""
        def find():
            return [pid for pid in support.descendants(self.instance.process.pid)
                    if support.read_text(f"/proc/{pid}/comm").strip() == f"at step {step}"]
        return wait_until(find, f"the jailer is behind step {step}\n{self.instance.tail()}")[0]

    def begin(self, pool):
        def acquire():
            with support.Api(self.instance.address) as api:
                return api.acquire()
        return pool.submit(acquire)

    def expect_nothing_left(self):
        instance = self.instance
        wait_until(lambda: not instance.traces(), f"no trace: {instance.traces()}")
        wait_until(lambda: not [p for p in support.descendants(instance.process.pid)
                                if support.program_of(p) == "cordon-jailer"], "no jailer")

    def expect_a_good_one(self):
        self.stop_after(None)
        done = self.instance.cordon("run", "--", "echo", "well")
        assert (done.status, done.out) == (0, b"well\n"), (done, self.instance.tail())
        self.expect_nothing_left()


@pytest.fixture(scope="module")
def stops():
    it = Stops()
    try:
        it.instance.start()
        yield it
    finally:
        try:
            it.instance.dispose()
        finally:
            shutil.rmtree(it.libexec)


@pytest.fixture
def pool():
    with concurrent.futures.ThreadPoolExecutor(len(STEPS)) as executor:
        yield executor


@pytest.mark.parametrize("step", STEPS)
def test_the_jailer_is_killed_behind_a_step(stops, pool, step):
    stops.stop_after(step)
    acquiring = stops.begin(pool)
    pid = stops.stopped(step)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(Refused) as refused:
        acquiring.result(support.PATIENCE)
    assert refused.value.reason == "RUNTIME_FAILED", refused.value
    stops.expect_nothing_left()
    stops.expect_a_good_one()


def stop_at_each(stops, pool, steps):
    """A sandbox in the making for each step; (its call, its process)."""
    begun = []
    for step in steps:
        stops.stop_after(step)
        acquiring = stops.begin(pool)
        begun.append((acquiring, stops.stopped(step)))
    stops.stop_after(None)
    return begun


def expect_ended(begun, reasons):
    for acquiring, pid in begun:
        with pytest.raises(Refused) as refused:
            acquiring.result(support.PATIENCE)
        assert refused.value.reason in reasons, refused.value
        wait_until(lambda: support.process_state(pid) in ("", "Z"),
                   f"it is killed: {support.describe_process(pid)}")


def test_the_broker_is_killed_while_jailers_stand_behind_every_step(stops, pool):
    """All at once, since each restart of the broker waits longer than the last."""
    begun = stop_at_each(stops, pool, STEPS)
    first = stops.instance.broker
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: stops.instance.broker != first, "another broker")
    expect_ended(begun, ["BROKER_LOST"])
    stops.expect_nothing_left()
    wait_until(lambda: stops.instance.cordon("run", "--", "true").status == 0, "it serves")
    stops.expect_nothing_left()


def test_sigterm_while_jailers_stand(stops, pool):
    """Before it is in any cgroup, and as pid 1: killed when its time is up."""
    begun = stop_at_each(stops, pool, [2, 8])
    stops.instance.stop()
    stops.instance.start()
    expect_ended(begun, ["RUNTIME_TIMEOUT", "BROKER_LOST", ""])
    stops.expect_a_good_one()
