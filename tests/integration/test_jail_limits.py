"""A host that runs out of something while a jail is made: a clear refusal,
nothing left, and the next one works when it is there again.

Namespace limits are per user namespace, so the instance has one of its own and
the machine keeps its values.
"""
import contextlib
import os
import pathlib
import resource
import subprocess
import sys
import tempfile

import pytest

import support
from support import Refused, wait_until

IN_A_USER_NAMESPACE = [sys.executable, str(pathlib.Path(__file__).parent / "in_user_namespace.py")]


def refusal(instance, **spec):
    """The refusal of a create, or None when it went well."""
    with support.Api(instance.address) as api:
        try:
            acquired = api.acquire(**spec)
        except Refused as refused:
            return refused
        assert api.release(acquired.id).receipt.complete
        return None


def expect_clear(refused, instance, reasons=("HOST_LIMIT",)):
    assert refused.reason in reasons, (refused, instance.tail())
    assert refused.detail, refused


def expect_a_good_one(instance):
    wait_until(lambda: not instance.traces(), f"no trace: {instance.traces()}")
    done = instance.cordon("run", "--", "echo", "well")
    assert (done.status, done.out) == (0, b"well\n"), (done, instance.tail())
    wait_until(lambda: not instance.traces(), f"no trace: {instance.traces()}")


@pytest.fixture(scope="module")
def instance():
    with support.Instance() as it:
        expect_a_good_one(it)
        yield it


# ---------------------------------------------------------------- namespaces


@pytest.fixture(scope="module")
def nested():
    """An instance whose root is that of a user namespace with every id in it."""
    with support.Instance(prefix=IN_A_USER_NAMESPACE) as it:
        expect_a_good_one(it)
        yield it


def inside(nested, *command):
    return subprocess.run(["nsenter", "--target", str(nested.process.pid), "--user",
                           "--preserve-credentials", *command],
                          check=True, capture_output=True, timeout=30).stdout


@contextlib.contextmanager
def setting(nested, name, value):
    """A setting of the instance's user namespace; it ends with that."""
    path = f"/proc/sys/user/{name}"
    before = inside(nested, "cat", path).decode().strip()
    inside(nested, "sh", "-c", f"echo {value} > {path}")
    try:
        yield
    finally:
        inside(nested, "sh", "-c", f"echo {before} > {path}")


@pytest.mark.parametrize("kind", ["user", "net", "mnt", "pid", "ipc", "uts", "cgroup"])
def test_no_more_namespaces(nested, kind):
    with setting(nested, f"max_{kind}_namespaces", 0):
        refused = refusal(nested)
        assert refused is not None
        expect_clear(refused, nested)
        # The image as a detached tree has a mount namespace, too.
        where = {"user": "user namespace", "net": "user namespace", "mnt": "could not be started"}
        assert where.get(kind, "namespaces") in refused.detail
    expect_a_good_one(nested)


HOLD = """
import ctypes, sys, time
libc, n = ctypes.CDLL(None), 0
while n < 100 and libc.inotify_init() >= 0:
    n += 1
print(n, flush=True)
time.sleep(float(sys.argv[1]))
"""


def test_one_sandbox_uses_up_nobody_elses_inotify(nested):
    """The kernel counts it for the maker of the sandbox's user namespace, too."""
    with setting(nested, "max_inotify_instances", 8):
        greedy = nested.popen("run", "--", "python3", "-c", HOLD, "300")
        try:
            assert greedy.stdout.readline() == b"8\n"
            other = nested.cordon("run", "--", "python3", "-c", HOLD, "0")
            assert other.out == b"8\n", other
            assert inside(nested, sys.executable, "-c", HOLD, "0") == b"8\n", "the host's root"
        finally:
            greedy.kill()
            greedy.communicate(timeout=60)
    expect_a_good_one(nested)


# ---------------------------------------------------------------- descriptors


def acquire_until_refused(api, held, most=64):
    while len(held) < most:
        try:
            held.append(api.acquire().id)
        except Refused as refused:
            return refused
    return None


def test_no_more_descriptors(instance):
    """Sandboxes until there are none left, with one more each time: a create stops
    at every place where it can."""
    broker = instance.broker
    soft, hard = resource.prlimit(broker, resource.RLIMIT_NOFILE)
    highest = max(int(n) for n in os.listdir(f"/proc/{broker}/fd"))
    before = len(os.listdir(f"/proc/{broker}/fd"))
    for more in range(2, 30, 3):
        held = []
        resource.prlimit(broker, resource.RLIMIT_NOFILE, (highest + more, hard))
        with support.Api(instance.address) as api:
            try:
                refused = acquire_until_refused(api, held)
            finally:
                resource.prlimit(broker, resource.RLIMIT_NOFILE, (soft, hard))
                for sandbox in held:
                    assert api.release(sandbox).receipt.complete
        assert refused is not None, (more, len(held))
        expect_clear(refused, instance, ("HOST_LIMIT", "LIMIT_NOT_APPLIED"))
        wait_until(lambda: not instance.traces(), f"no trace at {more}: {instance.traces()}")
    assert instance.broker == broker, "it lives"
    wait_until(lambda: len(os.listdir(f"/proc/{broker}/fd")) <= before + 1,
               "it has closed what it opened")
    expect_a_good_one(instance)


def test_destroyed_without_descriptors(instance):
    """What can't be done without them is left, said so, and done later."""
    broker = instance.broker
    soft, hard = resource.prlimit(broker, resource.RLIMIT_NOFILE)
    with support.Api(instance.address) as api:
        acquired = api.acquire()
        call = api.begin_exec(acquired.id, ["sleep", "297"])
        first_free = min(set(range(4096)) - {int(n) for n in os.listdir(f"/proc/{broker}/fd")})
        resource.prlimit(broker, resource.RLIMIT_NOFILE, (first_free, hard))
        try:
            receipt = api.release(acquired.id).receipt
        finally:
            resource.prlimit(broker, resource.RLIMIT_NOFILE, (soft, hard))
        assert receipt.complete == (not receipt.left), receipt
        call.cancel()
    assert instance.broker == broker, "it lives"
    expect_a_good_one(instance)


# ---------------------------------------------------------------- processes, memory


CGROUPS = pathlib.Path("/sys/fs/cgroup")
V1 = not (CGROUPS / "cgroup.controllers").exists()
MEMORY_NOW, MEMORY_LIMIT, NO_LIMIT = (
    ("memory.usage_in_bytes", "memory.limit_in_bytes", "-1") if V1 else
    ("memory.current", "memory.max", "max"))


def cgroup_of_all(instance, controller):
    """The cgroup that all sandboxes of the instance are in."""
    return CGROUPS / (controller if V1 else "") / "cordon" / instance.name


@contextlib.contextmanager
def limited(path, value, otherwise):
    path.write_text(str(value))
    try:
        yield
    finally:
        path.write_text(otherwise)


@pytest.mark.parametrize("room", [0, 1])
def test_no_more_processes(instance, room):
    with limited(cgroup_of_all(instance, "pids") / "pids.max", room, "max"):
        refused = refusal(instance)
        assert refused is not None
        expect_clear(refused, instance)
        assert "user namespace" in refused.detail, refused
    expect_a_good_one(instance)


def test_no_more_memory_above(instance):
    """From none at all to nearly enough: the kernel kills whoever asks."""
    outcomes = []
    group = cgroup_of_all(instance, "memory")
    for kib in [0, 64, 128, 256, 384, 512, 768, 1024, 1536, 2048, 3072]:
        limit = int((group / MEMORY_NOW).read_text()) + (kib << 10)
        with limited(group / MEMORY_LIMIT, limit, NO_LIMIT):
            refused = refusal(instance)
        if refused is not None:
            expect_clear(refused, instance,
                         ("HOST_LIMIT", "RUNTIME_FAILED", "LIMIT_NOT_APPLIED", "RUNTIME_TIMEOUT"))
        outcomes.append(refused and refused.reason)
        wait_until(lambda: not instance.traces(), f"no trace: {instance.traces()}")
    # Which ones: what had been charged ahead of its use is there as well.
    assert any(outcomes), outcomes
    expect_a_good_one(instance)


def test_the_least_memory_that_is_taken(instance):
    """What is not refused at once gives a sandbox."""
    scratch = dict(disk_bytes=64 << 10, tmp_bytes=64 << 10, shm_bytes=64 << 10)
    taken = 0
    for mib in [1, 2, 4, 6, 8, 16]:
        refused = refusal(instance, limits=dict(memory_bytes=mib << 20, **scratch))
        if refused is None:
            taken += 1
        else:
            assert refused.code == "INVALID_ARGUMENT", (mib, refused)
    assert taken
    expect_a_good_one(instance)


# ---------------------------------------------------------------- disk


@contextlib.contextmanager
def tiny(size):
    """A file system of its own for a state directory."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="cordon-tiny-"))
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=711", "cordon-test", path],
                   check=True, timeout=30)
    try:
        (path / "state").mkdir(mode=0o711)
        yield path / "state"
    finally:
        subprocess.run(["umount", "--lazy", path], check=True, timeout=30)
        path.rmdir()


def fill(path, leave=0):
    """Until nothing goes in any more, but for so many pages."""
    with open(path, "wb", buffering=0) as file:
        with contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        file.truncate(max(0, file.tell() - leave * 4096))


def test_a_full_disk():
    with tiny("256k") as state, tempfile.TemporaryDirectory() as elsewhere:
        instance = support.Instance(state=state)
        instance.log = pathlib.Path(elsewhere) / "log"
        with instance:
            expect_a_good_one(instance)
            refusals = 0
            for leave in [0, 1, 2]:
                fill(state / "filler", leave)
                refused = refusal(instance)
                if refused is not None:
                    refusals += 1
                    expect_clear(refused, instance, ("STATE_FULL",))
                (state / "filler").unlink()
                expect_a_good_one(instance)
            assert refusals
            # One that lives is destroyed all the same.
            with support.Api(instance.address) as api:
                acquired = api.acquire()
                fill(state / "filler")
                assert api.exec(acquired.id, ["true"]).result.exit_code == 0
                receipt = api.release(acquired.id).receipt
                assert receipt.complete, receipt
            (state / "filler").unlink()
            expect_a_good_one(instance)


def test_no_room_for_directories(instance):
    """The broker's private file system."""
    point = f"/run/cordon/{instance.name}"
    # The copy of mount(8) of another namespace, and of this one's, are the same.
    enter = ["nsenter", "--target", str(instance.broker), "--mount"]
    used = os.statvfs(f"/proc/{instance.broker}/root{point}")
    subprocess.run([*enter, "mount", "-o", f"remount,nr_inodes={used.f_files - used.f_ffree}", point],
                   check=True, timeout=30)
    try:
        refused = refusal(instance)
        assert refused is not None
        expect_clear(refused, instance)
    finally:
        subprocess.run([*enter, "mount", "-o", f"remount,nr_inodes={used.f_files}", point],
                       check=True, timeout=30)
    expect_a_good_one(instance)
