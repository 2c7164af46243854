"""Snapshots and restores that are ended at a bad moment: nothing half made stays."""
import os
import signal
import time

import pytest

import support
from snapshotting import (Caught, copier_group, delete, frozen, nothing_in_the_store, refusal,
                          run_inside, snapshot, store_of)
from stops import STEPS, Stops
from support import Instance, wait_until


@pytest.fixture
def instance():
    """One of its own, for what is done to its broker."""
    with Instance("--agents-mode", "0666") as own:
        before = own.fingerprint()
        yield own
        if own.process is not None:
            wait_until(lambda: own.fingerprint()["traces"] == before["traces"], "nothing is left")


@pytest.fixture(params=["jail", "runc"])
def either(request):
    return request.param


FILL = "import os; open('/work/a','wb').write(os.urandom(60 << 20))"


@pytest.fixture
def filled(instance):
    sandbox = instance.acquire("jail", "--disk", "64M")
    run_inside(instance, sandbox, FILL)
    yield sandbox
    if instance.process is not None:
        instance.cordon("release", sandbox)


def test_the_copier_is_confined(instance, filled):
    caught = Caught.of(instance, filled)
    assert frozen(instance, filled)
    status = dict(line.split(":\t", 1) for line in
                  support.read_text(f"/proc/{caught.pid}/status").splitlines() if ":\t" in line)
    uid = int(status["Uid"].split()[0])
    first = instance.cordon("inspect", "--json", filled).json["id_range_start"]
    assert first <= uid < first + 65536
    if support.program_of(caught.pid) not in ("cordon-jailer", ""):
        assert status["NoNewPrivs"].strip() == "1"
        assert status["Seccomp"].strip() == "2"
        CAP_DAC_READ_SEARCH = 1 << 2
        assert int(status["CapEff"], 16) == CAP_DAC_READ_SEARCH
        assert int(status["CapBnd"], 16) == CAP_DAC_READ_SEARCH
    mounts = support.read_text(f"/proc/{caught.pid}/mountinfo").splitlines()
    assert len(mounts) == 1, "an empty root and nothing else"
    broker = instance.broker
    for ns in ["net", "mnt", "pid", "user", "ipc", "uts", "cgroup"]:
        assert support.read_link(f"/proc/{caught.pid}/ns/{ns}") != \
            support.read_link(f"/proc/{broker}/ns/{ns}"), ns
    caught.go_on()
    done = caught.end()
    assert done.status == 0, done
    assert not frozen(instance, filled)
    delete(instance, done.json["id"])


def test_one_at_a_time_of_a_sandbox(instance, filled):
    caught = Caught.of(instance, filled)
    error = refusal(instance.cordon("snapshot", "--json", filled))
    assert (error["code"], error["reason"]) == ("RESOURCE_EXHAUSTED", "SNAPSHOT_BUSY"), error
    caught.go_on()
    done = caught.end()
    assert done.status == 0, done
    delete(instance, done.json["id"])


def test_a_copier_that_is_killed_leaves_nothing_and_the_sandbox_thawed(instance, filled):
    caught = Caught.of(instance, filled)
    os.kill(caught.pid, signal.SIGKILL)
    error = refusal(caught.end())
    assert (error["code"], error["reason"]) == ("UNAVAILABLE", "SNAPSHOT_FAILED"), error
    nothing_in_the_store(instance)
    assert not frozen(instance, filled)
    assert run_inside(instance, filled, "print(1)") == b"1\n"
    assert not copier_group(instance, filled).exists()
    # And the next one goes through.
    snap, _ = snapshot(instance, filled)
    delete(instance, snap)


def test_a_sandbox_that_is_released_meanwhile_goes_wholly(instance, filled):
    caught = Caught.of(instance, filled)
    done = instance.cordon("release", "--json", filled)
    assert done.status == 0 and done.json["complete"], done
    error = refusal(caught.end())
    assert error["reason"] in ("SANDBOX_GONE", "SNAPSHOT_FAILED"), error
    nothing_in_the_store(instance)
    wait_until(lambda: not os.path.exists(f"/proc/{caught.pid}"), "the copier is gone")


def test_a_client_that_vanishes_leaves_no_snapshot(instance, filled):
    caught = Caught.of(instance, filled)
    caught.call.kill()
    caught.call.wait()
    caught.go_on()
    wait_until(lambda: not frozen(instance, filled), "it is thawed")
    wait_until(lambda: os.listdir(store_of(instance)) == [], "nobody's snapshot is kept")
    assert instance.cordon("snapshots", "--json").json["snapshots"] == []
    caught.call.communicate()


def test_a_broker_that_is_killed_leaves_nothing(instance, filled):
    caught = Caught.of(instance, filled)
    broker = instance.broker
    assert frozen(instance, filled)
    os.kill(broker, signal.SIGKILL)
    # `up` starts another, which finishes what was there.
    wait_until(lambda: instance.broker != broker, "a new broker")
    wait_until(lambda: not instance.traces(), f"the sandbox is gone\n{instance.tail()}")
    wait_until(lambda: os.listdir(store_of(instance)) == [], "nothing is left of the snapshot")
    wait_until(lambda: support.process_state(caught.pid) in ("", "Z"), "the copier is gone")
    caught.call.communicate(timeout=support.PATIENCE)
    assert caught.call.returncode != 0
    done = instance.cordon("run", "--", "echo", "again")
    assert done.out == b"again\n", done


def test_an_exec_goes_on_after_a_snapshot_and_its_deadline_holds(instance, either):
    """Frozen past its deadline it is ended at the thaw; one begun meanwhile waits."""
    sandbox = instance.acquire(either, "--disk", "64M")
    run_inside(instance, sandbox, FILL)
    late = instance.popen("exec", "--json", "--wall", "2s", sandbox, "--", "sleep", "1000")
    wait_until(lambda: support.processes_with("sleep\x001000"), "it runs")
    begun = time.monotonic()
    caught = Caught.of(instance, sandbox)
    meanwhile = instance.popen("exec", sandbox, "--", "echo", "here")
    wait_until(lambda: time.monotonic() > begun + 2.5, "its deadline is over")
    assert frozen(instance, sandbox)
    caught.go_on()
    done = caught.end()
    assert done.status == 0, (done, instance.tail())
    out, err = meanwhile.communicate(timeout=support.PATIENCE)
    assert out == b"here\n", (out, err, instance.tail())
    out, err = late.communicate(timeout=support.PATIENCE)
    ended = support.Completed(late.returncode, out, err)
    assert ended.json["verdict"]["control"] == "wall_clock", (ended, instance.tail())
    assert run_inside(instance, sandbox, "print(1)") == b"1\n"
    delete(instance, done.json["id"])
    instance.release(sandbox)


# ---------------------------------------------------------------- while it is put back


@pytest.fixture
def kept(instance, either):
    """A snapshot that takes a moment to put back."""
    sandbox = instance.acquire(either, "--disk", "64M", "--memory", "128M")
    run_inside(instance, sandbox, FILL)
    snap, _ = snapshot(instance, sandbox)
    instance.release(sandbox)
    yield snap
    if instance.process is not None:
        delete(instance, snap)


def restores(instance, snap):
    done = instance.cordon("run", "--snapshot", snap, "--", "stat", "-c", "%s", "/work/a")
    assert done.out == b"62914560\n", (done, instance.tail())


def test_a_restoring_copier_that_is_killed_leaves_no_sandbox(instance, kept):
    caught = Caught.of_restore(instance, kept)
    os.kill(caught.pid, signal.SIGKILL)
    error = refusal(caught.end())
    assert (error["code"], error["reason"]) == ("UNAVAILABLE", "SNAPSHOT_FAILED"), error
    wait_until(lambda: not instance.traces(), "nothing is left")
    restores(instance, kept)


def test_a_broker_that_is_killed_while_it_restores_leaves_the_snapshot_alone(instance, kept):
    caught = Caught.of_restore(instance, kept)
    broker = instance.broker
    os.kill(broker, signal.SIGKILL)
    wait_until(lambda: instance.broker != broker, "a new broker")
    wait_until(lambda: not instance.traces(), f"the sandbox is gone\n{instance.tail()}")
    wait_until(lambda: support.process_state(caught.pid) in ("", "Z"), "the copier is gone")
    caught.call.communicate(timeout=support.PATIENCE)
    assert caught.call.returncode != 0
    restores(instance, kept)


def test_a_client_that_vanishes_while_it_is_restored_leaves_no_sandbox(instance, kept):
    caught = Caught.of_restore(instance, kept)
    caught.call.kill()
    caught.call.communicate()
    caught.go_on()
    wait_until(lambda: not instance.traces(), f"nothing is left\n{instance.tail()}")
    restores(instance, kept)


# The frontend waits 20 s for its calls, then the broker ends at once.
@pytest.mark.parametrize("either", ["jail"], indirect=True)
def test_sigterm_while_one_is_taken_and_one_is_put_back(instance, kept):
    other = instance.acquire("jail", "--disk", "64M")
    run_inside(instance, other, FILL)
    one = Caught.of_restore(instance, kept)
    two = Caught.of(instance, other)
    instance.stop()
    instance.start()
    for caught in [one, two]:
        caught.call.communicate(timeout=support.PATIENCE)
        assert caught.call.returncode != 0
        assert support.process_state(caught.pid) in ("", "Z")
    assert os.listdir(store_of(instance)) == [kept.split(".")[0]]
    restores(instance, kept)


# ---------------------------------------------------------------- the jailer of a copier


@pytest.fixture(scope="module")
def stops():
    with Stops() as it:
        yield it


@pytest.fixture
def ready(stops):
    stops.stop_after(None)
    sandbox = stops.instance.acquire("jail")
    yield sandbox
    stops.stop_after(None)
    stops.instance.cordon("release", sandbox)
    stops.expect_nothing_left()


# Behind the last one its filter lets it do nothing but be the copier.
@pytest.mark.parametrize("step", STEPS[:-1])
def test_the_copiers_jailer_is_killed_behind_a_step(stops, ready, step):
    instance = stops.instance
    stops.stop_after(step)
    taking = instance.popen("snapshot", "--json", ready)
    pid = stops.stopped(step)
    assert frozen(instance, ready)
    os.kill(pid, signal.SIGKILL)
    out, err = taking.communicate(timeout=support.PATIENCE)
    error = refusal(support.Completed(taking.returncode, out, err))
    assert error["reason"] == "SNAPSHOT_FAILED", (error, instance.tail())
    nothing_in_the_store(instance)
    assert not frozen(instance, ready) and not copier_group(instance, ready).exists()
    stops.stop_after(None)
    assert run_inside(instance, ready, "print(1)") == b"1\n"
    snap, _ = snapshot(instance, ready)
    delete(instance, snap)


@pytest.mark.parametrize("step", [2, 5, 9, 16])
def test_a_sandbox_is_released_while_the_copiers_jailer_stands(stops, ready, step):
    instance = stops.instance
    stops.stop_after(step)
    taking = instance.popen("snapshot", "--json", ready)
    pid = stops.stopped(step)
    done = instance.cordon("release", "--json", ready)
    assert done.status == 0 and done.json["complete"], done
    out, err = taking.communicate(timeout=support.PATIENCE)
    error = refusal(support.Completed(taking.returncode, out, err))
    assert error["reason"] in ("SANDBOX_GONE", "SNAPSHOT_FAILED"), error
    nothing_in_the_store(instance)
    wait_until(lambda: support.process_state(pid) in ("", "Z"),
               f"it is killed: {support.describe_process(pid)}")
