"""Clients that vanish at any step, and parts that are killed: nothing is left of either."""
import os
import signal
import threading

import pytest

import support
from support import Api, refused, v1, wait_until


class Step:
    """Feeds requests by hand, so that the client can vanish in between."""

    def __init__(self, *first):
        self.requests = list(first)
        self.done = threading.Event()

    def __iter__(self):
        yield from self.requests
        self.done.wait(60)


@pytest.mark.parametrize("moment", ["at-once", "started", "output", "mid-stdin", "half-closed"])
@pytest.mark.parametrize("way", ["cancel", "disconnect"])
def test_a_client_that_vanishes_during_run(service, moment, way):
    """The leak check of the fixture is the assertion: Run always releases."""
    client = Api(service.address)
    argv = [b"sh", b"-c", b"echo here; cat > /dev/null; exec sleep 331"]
    first = v1.ExecRequest(run=v1.RunStart(sandbox=client.spec(),
                                           exec=v1.ExecSpec(argv=argv, stdin=True)))
    requests = [first]
    if moment == "mid-stdin":
        requests += [v1.ExecRequest(stdin=b"y" * 500_000)] * 4
    step = Step(*requests)
    call = client.stub.Run(iter(step), timeout=60)
    if moment != "at-once":
        assert next(call).WhichOneof("message") == "started"
        assert next(call).output.data == b"here\n"
    if moment == "half-closed":
        step.done.set()
        wait_until(lambda: support.processes_with(b"sleep\x00331"), "standard input was closed")
    if way == "cancel":
        call.cancel()
    else:
        client.close()
    step.done.set()
    wait_until(lambda: not service.traces(), "the sandbox is gone")
    client.close()


def test_a_client_that_vanishes_during_exec_kills_the_program_alone(service):
    sandbox = service.acquire(service.runtime)
    with Api(service.address) as client:
        start = v1.ExecRequest(start=v1.ExecStart(
            id=sandbox, exec=v1.ExecSpec(argv=[b"sh", b"-c", b"setsid sleep 337 & exec sleep 337"])))
        call = client.stub.Exec(iter([start]), timeout=60)
        next(call)
        wait_until(lambda: len(support.processes_with(b"sleep\x00337")) >= 2, "it runs")
        call.cancel()
    wait_until(lambda: not support.processes_with(b"sleep\x00337"), "the exec's processes ended")
    assert service.cordon("exec", sandbox, "--", "echo", "alive").out == b"alive\n"
    service.release(sandbox)


def test_a_cli_that_is_killed(service):
    process = service.popen("run", "--", "sh", "-c", "echo here; exec sleep 347")
    assert process.stdout.readline() == b"here\n"
    process.kill()
    process.communicate()
    wait_until(lambda: not service.traces(), "the sandbox is gone")


def test_a_deadline_of_the_client_kills_the_program(api, service):
    acquired = api.acquire()
    error = refused(api.exec, acquired.id, ["sleep", "349"], timeout=1.5)
    assert error.code == "DEADLINE_EXCEEDED"
    wait_until(lambda: not support.processes_with(b"sleep\x00349"), "the program is gone")
    api.release(acquired.id)


def test_an_acquire_whose_client_vanished_leaves_at_most_an_idle_sandbox(service):
    """Nobody got its token: it must end by itself, or never have begun."""
    with Api(service.address) as client:
        request = v1.AcquireRequest(spec=client.spec(idle_ms=1500))
        call = client.stub.Acquire.future(request, timeout=60)
        call.cancel()
    wait_until(lambda: not service.traces(), "nothing is left")


# ---------------------------------------------------------------- parts that are killed


def test_a_frontend_killed_mid_exec(runtime):
    with support.Instance(runtime=runtime) as instance:
        process = instance.popen("run", "--", "sh", "-c", "echo here; exec sleep 353")
        assert process.stdout.readline() == b"here\n"
        old = instance.agents
        os.kill(old, signal.SIGKILL)
        process.communicate(timeout=60)
        assert process.returncode == 125
        # EOF of its stream ends the exec; the sandbox goes by its idle limit at the latest.
        wait_until(lambda: not support.processes_with(b"sleep\x00353"), "the exec's processes ended")
        wait_until(lambda: instance.agents != old, "another frontend runs")
        wait_until(lambda: instance.cordon("run", "--", "true").status == 0, "it serves")


def test_a_broker_killed_mid_exec(runtime):
    with support.Instance(runtime=runtime) as instance:
        process = instance.popen("run", "--", "sh", "-c", "echo here; exec sleep 359")
        assert process.stdout.readline() == b"here\n"
        kept = instance.acquire(runtime)
        old = instance.broker
        family = instance.sandbox_processes()
        os.kill(old, signal.SIGKILL)
        process.communicate(timeout=60)
        assert process.returncode != 0
        wait_until(lambda: instance.broker != old, "another broker runs")
        wait_until(lambda: instance.cordon("run", "--", "true").status == 0, "it serves")
        wait_until(lambda: not instance.traces(), "what the first one left is destroyed")
        left = [support.describe_process(p) for p in family
                if p != old and support.process_state(p) not in ("", "Z")]
        assert not left, left
        assert instance.cordon("exec", kept, "--", "true").status == 125
