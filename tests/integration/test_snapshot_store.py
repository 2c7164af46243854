"""The store of snapshots: its limits, what happens to it, a disk that is full."""
import os
import shutil
import stat
import subprocess
import tempfile

import pytest

from snapshotting import (OTHER_UID, Keeper, delete, nothing_in_the_store, refusal, run_inside,
                          snapshot, store_of)
from support import Instance, as_uid, wait_until


@pytest.fixture
def runtime():
    return "jail"


@pytest.fixture
def instance():
    """One of its own, for what is done to its store."""
    with Instance("--agents-mode", "0666") as own:
        yield own
        wait_until(lambda: not own.traces(), "nothing is left")


def test_caps_of_the_store():
    with Instance("--snapshot-bytes-per-owner", str(1 << 20), "--max-snapshots-per-owner", "2",
                  "--max-snapshots", "3", "--agents-mode", "0666") as instance:
        sandbox = instance.acquire("jail")
        small, _ = snapshot(instance, sandbox)
        run_inside(instance, sandbox, "import os; open('/work/a','wb').write(os.urandom(2 << 20))")
        error = refusal(instance.cordon("snapshot", "--json", sandbox))
        assert (error["reason"], error["subject"]) == ("SNAPSHOT_TOO_LARGE", "bytes"), error
        assert sorted(os.listdir(store_of(instance))) == [small.split(".")[0]]
        run_inside(instance, sandbox, "import os; os.unlink('/work/a')")
        second, _ = snapshot(instance, sandbox)
        error = refusal(instance.cordon("snapshot", "--json", sandbox))
        assert (error["code"], error["reason"]) == ("RESOURCE_EXHAUSTED", "TOO_MANY_SNAPSHOTS")
        assert error["limit"] == 2
        # Another owner's are counted apart, and all together.
        prefix = as_uid(OTHER_UID)
        done = instance.cordon("acquire", "--json", prefix=prefix)
        theirs = done.json["id"]
        assert instance.cordon("snapshot", theirs, prefix=prefix).status == 0
        error = refusal(instance.cordon("snapshot", "--json", theirs, prefix=prefix))
        assert error["reason"] == "TOO_MANY_SNAPSHOTS" and error["limit"] == 3
        delete(instance, second)
        delete(instance, small)


# ---------------------------------------------------------------- damage


def damage(path, how):
    if how == "flip":
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    elif how == "truncate":
        os.truncate(path, path.stat().st_size - 1)
    elif how == "longer":
        with open(path, "ab") as file:
            file.write(b"x")
    elif how == "remove":
        path.unlink()
    elif how == "symlink":
        path.rename(path.with_name("moved"))
        path.symlink_to("moved")
    elif how == "device":
        path.unlink()
        os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 5))
    elif how == "fifo":
        path.unlink()
        os.mkfifo(path, 0o600)
    elif how == "directory":
        path.unlink()
        path.mkdir()
    elif how == "open":
        path.chmod(0o644)
    elif how == "foreign":
        os.chown(path, OTHER_UID, OTHER_UID)
    elif how == "linked":
        os.link(path, path.with_name("second"))


WAYS = ["flip", "truncate", "longer", "remove", "symlink", "device", "fifo", "directory", "open",
        "foreign", "linked"]


def test_a_damaged_one_is_refused(service, keeper):
    sandbox = keeper.acquire()
    run_inside(service, sandbox, "open('/work/a', 'w').write('content' * 1000)")
    for file in ["data", "meta"]:
        for how in WAYS:
            snap, _ = keeper.snapshot(sandbox)
            directory = store_of(service) / snap.split(".")[0]
            damage(directory / file, how)
            error = refusal(service.cordon("acquire", "--json", "--snapshot", snap))
            assert (error["code"], error["reason"]) == ("FAILED_PRECONDITION", "SNAPSHOT_DAMAGED"), \
                (file, how, error)
            # Deleting it works all the same.
            if how == "directory":
                (directory / file).rmdir()
            delete(service, snap)


def test_one_put_in_anothers_place_is_refused(service, keeper):
    sandbox = keeper.acquire()
    run_inside(service, sandbox, "open('/work/a', 'w').write('one')")
    one, _ = keeper.snapshot(sandbox)
    run_inside(service, sandbox, "open('/work/a', 'w').write('two')")
    two, _ = keeper.snapshot(sandbox)
    a, b = (store_of(service) / s.split(".")[0] for s in [one, two])
    (a / "data").rename(a / "aside")
    (b / "data").rename(a / "data")
    error = refusal(service.cordon("acquire", "--json", "--snapshot", one))
    assert error["reason"] == "SNAPSHOT_DAMAGED", error
    (a / "meta").unlink()
    (b / "meta").rename(a / "meta")
    error = refusal(service.cordon("acquire", "--json", "--snapshot", one))
    assert error["reason"] == "SNAPSHOT_DAMAGED", error


def test_after_a_restart_they_are_there_and_damaged_ones_are_not(instance):
    sandbox = instance.acquire("jail")
    run_inside(instance, sandbox, "open('/work/a', 'w').write('kept')")
    good, _ = snapshot(instance, sandbox)
    bad, _ = snapshot(instance, sandbox)
    damage(store_of(instance) / bad.split(".")[0] / "meta", "flip")
    (store_of(instance) / ".new-sn-aaaaaaaaaa").mkdir()
    (store_of(instance) / ".new-sn-aaaaaaaaaa/data").write_text("half")
    instance.restart()
    assert not (store_of(instance) / ".new-sn-aaaaaaaaaa").exists()
    names = [s["name"] for s in instance.cordon("snapshots", "--json").json["snapshots"]]
    assert names == [good.split(".")[0]]
    done = instance.cordon("run", "--snapshot", good, "--", "cat", "/work/a")
    assert done.out == b"kept", done
    done = instance.cordon("run", "--json", "--snapshot", bad, "--", "cat", "/work/a")
    # Nothing in it can be believed, whose it was neither.
    assert refusal(done)["reason"] == "NO_SUCH_SNAPSHOT"
    assert "can't be used" in instance.tail(), "the log names it"


# ---------------------------------------------------------------- a full disk


@pytest.fixture
def small_disk():
    """A file system of 3 MiB and some files for snapshots."""
    directory = tempfile.mkdtemp(prefix="cordon-snapshots-")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3M,nr_inodes=8,mode=0700", "none",
                    directory], check=True)
    try:
        yield directory
    finally:
        subprocess.run(["umount", directory], check=True)
        os.rmdir(directory)


def test_a_full_disk_is_named_and_leaves_nothing(small_disk):
    with Instance("--snapshots", small_disk) as instance:
        keeper = Keeper(instance, "jail")
        sandbox = keeper.acquire()

        def full():
            error = refusal(instance.cordon("snapshot", "--json", sandbox))
            assert (error["code"], error["reason"]) == ("RESOURCE_EXHAUSTED", "STATE_FULL"), error
            assert error["errno"] == 28
            assert run_inside(instance, sandbox, "print(1)") == b"1\n", "it goes on"

        # In the middle of the content.
        run_inside(instance, sandbox, "import os; open('/work/a','wb').write(os.urandom(8 << 20))")
        full()
        wait_until(lambda: os.listdir(small_disk) == [], "nothing is left of it")
        run_inside(instance, sandbox, "import os; os.unlink('/work/a')")
        # For want of a file: of the record, of the content, of the directory.
        for there in [5, 6, 7]:
            for i in range(there):
                open(f"{small_disk}/in-the-way-{i}", "w").close()
            full()
            wait_until(lambda n=there: len(os.listdir(small_disk)) == n, "nothing is left of it")
            for i in range(there):
                os.unlink(f"{small_disk}/in-the-way-{i}")
        # And when there is room again.
        snap, _ = keeper.snapshot(sandbox)
        keeper.restore(snap)
        keeper.clear()
