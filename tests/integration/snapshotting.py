"""What the tests of snapshots have in common."""
import json
import os
import signal
import time

import support
from support import wait_until

ROOT = ["--writable-root", "32M"]
OTHER_UID = 12345


def store_of(service):
    return service.state / "broker/snapshots"


def run_inside(service, sandbox, program, *arguments, user="root", status=0):
    done = service.cordon("exec", "--user", user, sandbox, "--", "python3", "-c", program,
                          *arguments)
    assert done.status == status, done
    return done.out


def snapshot(service, sandbox, **keywords):
    done = service.cordon("snapshot", "--json", sandbox, **keywords)
    assert done.status == 0, done
    return done.json["id"], done.json["snapshot"]


def delete(service, snap):
    done = service.cordon("snapshots", "--delete", snap)
    assert done.status == 0, done


def refusal(done, status=125):
    """The error object of a --json command that was refused."""
    assert done.status == status, done
    return done.json["error"]


class Keeper:
    """Makes sandboxes and snapshots on an instance, and removes what is left of them."""

    def __init__(self, service, runtime):
        self.service, self.runtime = service, runtime
        self.sandboxes, self.snapshots = [], []

    def acquire(self, *flags):
        self.sandboxes.append(self.service.acquire(self.runtime, *flags))
        return self.sandboxes[-1]

    def snapshot(self, sandbox):
        snap, info = snapshot(self.service, sandbox)
        self.snapshots.append(snap)
        return snap, info

    def restore(self, snap, *flags):
        done = self.service.cordon("acquire", "--json", "--snapshot", snap, *flags)
        assert done.status == 0, (done, self.service.tail())
        self.sandboxes.append(done.json["id"])
        return self.sandboxes[-1]

    def clear(self):
        for sandbox in self.sandboxes:
            self.service.cordon("release", sandbox)
        for snap in self.snapshots:
            self.service.cordon("snapshots", "--delete", snap)


# What a tree looks like: everything that a snapshot promises to keep.
DESCRIBE = r"""
import hashlib, json, os, stat, sys
def look(path):
    status = os.lstat(path)
    kind = stat.S_IFMT(status.st_mode)
    out = [stat.filemode(status.st_mode), status.st_uid, status.st_gid, int(status.st_mtime_ns)]
    if stat.S_ISREG(kind):
        with open(path, "rb") as file: out.append(hashlib.sha256(file.read()).hexdigest())
        out += [status.st_size, status.st_nlink, status.st_blocks < 256 or status.st_size >> 10]
    if stat.S_ISLNK(kind): out.append(os.readlink(path).hex())
    if stat.S_ISDIR(kind): out.append(sorted(n.hex() for n in os.listdir(path)))
    return out
def walk(top, found):
    try: found[top.hex()] = look(top)
    except OSError as error: found[top.hex()] = error.errno; return
    if stat.S_ISDIR(os.lstat(top).st_mode):
        for name in os.listdir(top): walk(os.path.join(top, name), found)
found = {}
for top in sys.argv[1:]: walk(os.fsencode(top), found)
print(json.dumps(found, sort_keys=True))
"""
DESCRIBE = DESCRIBE.replace("os.readlink(path).hex()", "os.fsencode(os.readlink(path)).hex()")


def instance_cgroup(instance):
    """Of all the instance's sandboxes, where their memory is counted."""
    return [h / "cordon" / instance.name for h in support.cgroup_hierarchies()
            if (h / "cordon" / instance.name).exists() and h.name in ("memory", "cgroup")][0]


def freezer_state(instance, sandbox):
    name = sandbox.split(".")[0]
    for hierarchy in support.cgroup_hierarchies():
        base = hierarchy / "cordon" / instance.name / name
        for file in [base / "freezer.state", base / "work/cgroup.freeze"]:
            if file.exists():
                return support.read_text(file).strip()
    return ""


def frozen(instance, sandbox):
    return freezer_state(instance, sandbox) in ("FROZEN", "1")


def copier_group(instance, sandbox):
    """The directory that the copier's cgroup has while there is one."""
    return instance_cgroup(instance) / sandbox.split(".")[0] / "copier"


class Caught:
    """A copier at work, stopped. `process` is what called for it."""

    @classmethod
    def of(cls, instance, sandbox):
        """While a snapshot of `sandbox` is taken."""
        processes = copier_group(instance, sandbox) / "cgroup.procs"

        def begin():
            return instance.popen("snapshot", "--json", sandbox), lambda: [processes]

        return cls(instance, begin, lambda made: delete(instance, made["id"]))

    @classmethod
    def of_restore(cls, instance, snap):
        """While a new sandbox gets the files of `snap`."""
        def groups():
            return instance_cgroup(instance).glob("*/work/copier/cgroup.procs")

        def begin():
            return instance.popen("acquire", "--json", "--snapshot", snap), groups

        return cls(instance, begin, lambda made: instance.release(made["id"]))

    def __init__(self, instance, begin, undo):
        for _ in range(20):
            self.call, groups = begin()
            if self._stop(groups):
                return
            self.out, self.err = self.call.communicate(timeout=support.PATIENCE)
            assert self.call.returncode == 0, (self.out, self.err, instance.tail())
            undo(json.loads(self.out))
        raise AssertionError("the copier was never caught at work")

    def _stop(self, groups):
        while self.call.poll() is None:
            for pid in [int(p) for g in groups() for p in support.read_text(g).split()]:
                if support.read_text(f"/proc/{pid}/comm").strip().startswith("cordon-jailer"):
                    continue
                try:
                    os.kill(pid, signal.SIGSTOP)
                except OSError:
                    continue
                self.pid = pid
                return self._is_stopped(pid)
        return False

    def _is_stopped(self, pid):
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            state = support.process_state(pid)
            if state == "T":
                return True
            if state in ("", "Z"):
                return False
            time.sleep(0.001)
        return False

    def go_on(self):
        os.kill(self.pid, signal.SIGCONT)

    def end(self):
        self.out, self.err = self.call.communicate(timeout=2 * support.PATIENCE)
        return support.Completed(self.call.returncode, self.out, self.err)


def nothing_in_the_store(service):
    wait_until(lambda: os.listdir(store_of(service)) == [], "nothing is left of it")


def describe(service, sandbox, *places):
    """What DESCRIBE finds, by the names of the files as hexadecimal digits."""
    return json.loads(run_inside(service, sandbox, DESCRIBE, *places))
