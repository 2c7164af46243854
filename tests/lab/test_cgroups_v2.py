"""What only cgroup v2 as systemd mounts it can show: births, counters, namespaces."""
import contextlib
import errno
import os
import pathlib
import re
import signal
import stat
import subprocess
import threading

import pytest

import support
from support import CGROUPS, v1, wait_until

HOG = "x = bytearray(1 << 30)"

# From 6.11 on a refused fork is counted at the cgroup whose limit it met.
RELEASE = tuple(int(n) for n in re.match(r"(\d+)\.(\d+)", os.uname().release).groups())
COUNTED_AT_THE_LIMIT = RELEASE >= (6, 11)


def cgroup_of(pid):
    return support.read_text(f"/proc/{pid}/cgroup").strip().removeprefix("0::")


def number_in(path):
    return int(path.read_text())


def event(directory, file, key):
    for line in (directory / file).read_text().splitlines():
        if line.startswith(key + " "):
            return int(line.split()[1])
    raise AssertionError(f"no {key} in {directory / file}")


def control(ended):
    return v1.Control.Name(ended.result.verdict.control).lower()


class Sandbox:
    """An acquired sandbox, with its cgroups as the host sees them."""

    def __init__(self, instance, api, runtime, **limits):
        self.api = api
        acquired = api.acquire(runtime, limits=limits)
        self.id, self.name = acquired.id, acquired.sandbox.name
        self.path = f"/cordon/{instance.name}/{self.name}"
        self.cgroup = CGROUPS / self.path[1:]
        self.receipt = None

    def exec(self, *argv, **fields):
        return self.api.exec(self.id, argv, **fields)

    def begin(self, *argv, after=None):
        """An exec under way; with `after`, its stdin ends when that is set."""
        if after is None:
            return self.api.begin_exec(self.id, argv)

        def requests():
            spec = self.api.exec_spec(argv, stdin=True)
            yield v1.ExecRequest(start=v1.ExecStart(id=self.id, exec=spec))
            after.wait(support.PATIENCE)

        call = self.api.stub.Exec(requests(), timeout=2 * support.PATIENCE)
        assert next(call).HasField("started")
        return call

    def leaves(self):
        """The leaves that have processes."""
        return [p for p in sorted((self.cgroup / "work").glob("exec-*"))
                if event(p, "cgroup.events", "populated")]

    def agent(self):
        pid, = map(int, (self.cgroup / "agent/cgroup.procs").read_text().split())
        return pid

    def release(self):
        self.receipt = self.api.release(self.id).receipt
        return self.receipt


@pytest.fixture
def sandbox(service, api, runtime):
    """Makes sandboxes of the runtime; releases what a test did not."""
    made = []

    def make(**limits):
        made.append(Sandbox(service, api, runtime, **limits))
        return made[-1]

    yield make
    for each in made:
        if each.receipt is None:
            each.release()


def only_process(leaf, program):
    """The pid of the one process of that program in a leaf."""
    def found():
        pids = [int(p) for p in (leaf / "cgroup.procs").read_text().split()]
        return [p for p in pids if support.program_of(p) == program]
    return wait_until(found, f"{program} runs in {leaf}")[0]


# ---------------------------------------------------------------- where processes are


@contextlib.contextmanager
def migrations():
    """Yields a function: the kernel's lines about processes that were moved so far."""
    tracing = pathlib.Path("/sys/kernel/tracing")
    ours = not (tracing / "trace").exists()
    if ours:
        subprocess.run(["mount", "-t", "tracefs", "tracefs", tracing], check=True)
    switch = tracing / "events/cgroup/cgroup_attach_task/enable"
    try:
        (tracing / "trace").write_text("")
        switch.write_text("1")
        yield lambda: [line for line in (tracing / "trace").read_text().splitlines()
                       if "cgroup_attach_task" in line and not line.startswith("#")]
    finally:
        switch.write_text("0")
        (tracing / "trace").write_text("")
        if ours:
            subprocess.run(["umount", tracing], check=True)


def test_an_exec_is_born_in_its_leaf(sandbox):
    box = sandbox()
    with migrations() as moved:
        running = box.begin("sleep", "300")
        leaf, = wait_until(box.leaves, "the exec has a leaf")
        pid = only_process(leaf, "sleep")
        assert cgroup_of(pid) == f"{box.path}/work/{leaf.name}"
        assert cgroup_of(box.agent()) == f"{box.path}/agent"
        assert [line for line in moved() if box.path in line] == []
        # And this is how one that is moved would show.
        elsewhere = CGROUPS / f"cordon-lab-{os.getpid()}"
        elsewhere.mkdir()
        try:
            with subprocess.Popen(["sleep", "300"]) as other:
                (elsewhere / "cgroup.procs").write_text(str(other.pid))
                assert [line for line in moved() if elsewhere.name in line]
                other.kill()
        finally:
            wait_until(lambda: not event(elsewhere, "cgroup.events", "populated"), "it is empty")
            elsewhere.rmdir()
    running.cancel()


def test_only_leaves_hold_processes(sandbox):
    box = sandbox()
    running = box.begin("sh", "-c", "sleep 300 & sleep 300")
    leaf, = wait_until(box.leaves, "the exec has a leaf")
    wait_until(lambda: len((leaf / "cgroup.procs").read_text().split()) == 3, "all three run")
    for inner in [box.cgroup, box.cgroup / "work", box.cgroup.parent, box.cgroup.parent.parent]:
        assert (inner / "cgroup.procs").read_text() == "", inner
    running.cancel()


def test_the_namespace_is_rooted_at_the_sandbox(sandbox):
    box = sandbox()
    assert re.fullmatch(rb"0::/work/exec-\d+\n", box.exec("cat", "/proc/self/cgroup").out)
    # Nothing of the host's tree is there to be read.
    assert b"cgroup" not in box.exec("cat", "/proc/self/mounts").out
    assert box.exec("sh", "-c", "ls -A /sys/fs/cgroup 2>/dev/null").out == b""
    assert box.exec("mount", "-t", "cgroup2", "none", "/tmp").result.exit_code != 0


def test_only_the_joining_is_the_agents(sandbox):
    """Of all files of the sandbox's cgroups the agent owns cgroup.procs of two."""
    box = sandbox()
    running = box.begin("sleep", "300")
    leaf, = wait_until(box.leaves, "the exec has a leaf")
    agent = support.host_uid(box.agent())
    assert agent in support.ID_SPAN
    owned = {str(p.relative_to(box.cgroup)): p.stat().st_uid
             for p in box.cgroup.rglob("*") if p.stat().st_uid != 0}
    # One leaf may have been made in advance.
    leaves = [p.name for p in (box.cgroup / "work").glob("exec-*")]
    assert leaf.name in leaves
    assert owned == {"cgroup.procs": agent, **{f"work/{n}/cgroup.procs": agent for n in leaves}}
    running.cancel()


def test_the_leaf_in_the_agents_hands_leads_nowhere(sandbox):
    box = sandbox()
    running = box.begin("sleep", "300")
    leaf, = wait_until(box.leaves, "the exec has a leaf")
    wanted = leaf.stat().st_ino
    table = pathlib.Path(f"/proc/{box.agent()}/fd")
    directories = [p for p in table.iterdir() if stat.S_ISDIR(os.stat(p).st_mode)]
    held = []
    for each in directories:
        # Through the link of /proc this is the same mount and directory.
        fd = os.open(each, os.O_RDONLY | os.O_DIRECTORY)
        try:
            if os.fstat(fd).st_dev != CGROUPS.stat().st_dev:
                continue
            held.append(os.fstat(fd).st_ino)
            for path in ["..", "../../../../..", "../../../../../../etc"]:
                with contextlib.suppress(FileNotFoundError):
                    up = os.open(path, os.O_PATH, dir_fd=fd)
                    assert os.fstat(up).st_ino == held[-1], path
                    os.close(up)
            for file in ["cgroup.procs", "pids.max", "cgroup.kill", "memory.max"]:
                with pytest.raises(OSError) as refused:
                    os.open(file, os.O_WRONLY, dir_fd=fd)
                assert refused.value.errno == errno.EROFS, file
            with pytest.raises(OSError) as refused:
                os.mkdir("below", dir_fd=fd)
            assert refused.value.errno == errno.EROFS
        finally:
            os.close(fd)
    # This one's, and perhaps one made in advance; nothing else of the host's tree.
    made = {p.stat().st_ino for p in (box.cgroup / "work").glob("exec-*")}
    assert wanted in held and set(held) <= made, (held, made)
    running.cancel()


# ---------------------------------------------------------------- limits


def test_the_limits_are_the_kernels(sandbox):
    box = sandbox(memory_bytes=96 << 20, pids=33, cpu_millis=1500)
    running = box.begin("sleep", "300")
    leaf, = wait_until(box.leaves, "the exec has a leaf")
    work, agent = box.cgroup / "work", box.cgroup / "agent"
    assert number_in(work / "memory.max") == 96 << 20
    assert number_in(work / "memory.swap.max") == 0
    assert number_in(work / "memory.oom.group") == 0
    assert number_in(work / "pids.max") == 33
    assert (work / "cpu.max").read_text() == "150000 100000\n"
    assert number_in(leaf / "pids.max") == 33
    assert number_in(agent / "memory.max") <= 32 << 20
    assert number_in(agent / "memory.swap.max") == 0
    assert number_in(agent / "pids.max") <= 128
    running.cancel()


def test_an_oom_kill_is_the_execs_own_and_spares_the_agent(sandbox):
    box = sandbox(memory_bytes=96 << 20)
    # Quiet meanwhile: who asks for memory while the other dies may be the next.
    go = threading.Event()
    waiting = box.begin("cat", after=go)
    first, = wait_until(box.leaves, "the exec has a leaf")
    agent = box.agent()
    killed = box.exec("python3", "-c", HOG)
    assert killed.result.signal == signal.SIGKILL
    assert control(killed) == "memory" and killed.result.verdict.stopped
    assert not killed.result.verdict.shared
    assert [e.source for e in killed.result.verdict.evidence][0] == v1.KERNEL
    assert event(first, "memory.events", "oom_kill") == 0
    assert event(box.cgroup / "work", "memory.events", "oom_kill") == 1
    assert event(box.cgroup / "agent", "memory.events", "oom_kill") == 0
    go.set()
    ended = support.Ended()
    for response in waiting:
        ended.take(response)
    assert control(ended) == "none" and not ended.result.verdict.others, ended.result
    assert ended.result.exit_code == 0
    assert box.agent() == agent


def test_the_agent_survives_a_scratch_that_fills_the_memory(sandbox):
    """Pages of a tmpfs outlive who wrote them."""
    box = sandbox(memory_bytes=64 << 20)
    agent = box.agent()
    fill = "for d in /work /tmp /dev/shm; do head -c 100000000 /dev/zero > $d/big; done"
    box.exec("sh", "-c", fill)
    for _ in range(2):
        assert box.exec("python3", "-c", HOG).result.signal == signal.SIGKILL
    assert box.agent() == agent
    assert event(box.cgroup / "agent", "memory.events", "oom_kill") == 0
    assert box.exec("rm", "/work/big", "/tmp/big", "/dev/shm/big").result.exit_code == 0


# Prints how many forks were refused.
FORKS = """
import os, time
refused = 0
for n in range(60):
    try:
        if os.fork() == 0: time.sleep(600); os._exit(0)
    except OSError: refused += 1
print(refused, flush=True)
"""


def test_a_fork_refused_at_the_execs_limit(sandbox):
    box = sandbox(pids=16)
    ended = box.exec("python3", "-c", FORKS)
    verdict = ended.result.verdict
    assert (control(ended), verdict.stopped, verdict.limit, verdict.shared) == \
        ("processes", False, 16, False), ended.result
    evidence = verdict.evidence[0]
    assert evidence.source == v1.KERNEL and "(exec)" in evidence.counter, verdict
    assert evidence.after - evidence.before == int(ended.out) == verdict.observed
    assert event(box.cgroup / "agent", "pids.events", "max") == 0


def test_a_fork_refused_at_the_sandboxs_limit(sandbox):
    """The leaf is below its own limit; another exec fills the sandbox."""
    box = sandbox(pids=16)
    filler = box.begin("sh", "-c", "for n in 1 2 3 4 5 6; do sleep 300 & done; wait")
    first, = wait_until(box.leaves, "the exec has a leaf")
    wait_until(lambda: number_in(first / "pids.current") == 7, "it is half full")
    ended = box.exec("python3", "-c", FORKS)
    verdict = ended.result.verdict
    assert (control(ended), verdict.stopped, verdict.limit) == ("processes", False, 16)
    evidence = verdict.evidence[0]
    assert evidence.source == v1.KERNEL
    assert evidence.after - evidence.before == int(ended.out)
    # The newer kernel says whose limit it was, and not whose fork.
    assert verdict.shared == COUNTED_AT_THE_LIMIT, verdict
    assert ("(sandbox)" if COUNTED_AT_THE_LIMIT else "(exec)") in evidence.counter, verdict
    filler.cancel()


def test_cpu_time_is_the_leafs(sandbox):
    box = sandbox(cpu_time_ms=1000, cpu_millis=2000, wall_ms=60_000)
    ended = box.exec("sh", "-c", "(setsid sh -c 'while :; do :; done' &); while :; do :; done")
    verdict = ended.result.verdict
    assert (control(ended), verdict.stopped, verdict.limit) == ("cpu_time", True, 1000)
    assert verdict.evidence[0].source == v1.KERNEL and "(exec)" in verdict.evidence[0].counter
    wait_until(lambda: not box.leaves(), "nothing of it is left")


# ---------------------------------------------------------------- devices


def test_a_device_node_of_the_image_opens_nowhere(sandbox):
    """runc's device filter is on the agent's cgroup and not on the leaves."""
    node = pathlib.Path("/usr") / f"cordon-lab-{os.getpid()}"
    os.mknod(node, stat.S_IFCHR | 0o666, os.makedev(1, 5))
    os.chmod(node, 0o666)
    try:
        assert os.open(node, os.O_RDONLY) >= 0  # on the host it is /dev/zero
        box = sandbox()
        for user in ["", "root"]:
            ended = box.exec("python3", "-c", f"open('{node}', 'rb').read(1)",
                             **({"user": user} if user else {}))
            assert ended.result.exit_code == 1
            assert b"PermissionError" in ended.err, ended.err
        # Nor has it made one of its own.
        made = box.exec("mknod", "/work/zero", "c", "1", "5")
        assert made.result.exit_code != 0
        # The basic ones are there.
        assert box.exec("head", "-c", "3", "/dev/zero").out == bytes(3)
    finally:
        node.unlink()


# ---------------------------------------------------------------- what stays


def test_the_escape_suite_leaves_the_hosts_mounts_as_they_were(host):
    """cgroup2 is one file system for all, its options (nsdelegate) too."""
    mounts = support.read_text("/proc/self/mountinfo")
    assert "nsdelegate" in mounts
    done = host.cordon("escape", "--json", "--runtime", "host", "--only", "mount")
    row, = done.json["rows"]
    assert row["outcome"] == "escaped" and "cgroup2" in row["evidence"], row
    assert support.read_text("/proc/self/mountinfo") == mounts


def dying(path):
    return event(path, "cgroup.stat", "nr_dying_descendants")


def test_the_receipt_is_empty_and_nothing_dies_for_ever(sandbox):
    base = CGROUPS / "cordon"
    box = sandbox()
    for _ in range(12):
        box.exec("sh", "-c", "echo x > /tmp/x; (sleep 0 &)")

    def emptied(path, most):
        # Pages of files that a leaf read first keep it until they are dropped.
        pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")
        return dying(path) <= most

    # Of a live sandbox: the leaf of whoever wrote what is still in /tmp.
    wait_until(lambda: emptied(box.cgroup, 2), "its leaves are gone for good")
    receipt = box.release()
    assert receipt.complete and not receipt.left, receipt
    assert {"unified:" + box.path + part for part in ["", "/agent", "/work"]} <= \
        {item.name for item in receipt.removed if item.kind == "cgroup"}
    assert not box.cgroup.exists()
    wait_until(lambda: emptied(base, 0), "nothing of it is kept")


def test_sandboxes_below_a_delegated_unit(runtime):
    """Started in a leaf of a unit that systemd delegated, they are made below that."""
    unit = f"cordon-lab-{os.getpid()}.service"
    state = pathlib.Path("/run") / f"cordon-lab-{os.getpid()}"
    top = CGROUPS / "system.slice" / unit
    start = (f'echo 0 > "$1/cgroup.procs" && exec {support.CORDON} up --state {state} '
             f"> {state}/out 2> {state}/log")
    state.mkdir(mode=0o711)
    try:
        subprocess.run(["systemd-run", "--quiet", "--collect", f"--unit={unit}",
                        "-p", "Delegate=yes", "sh", "-c",
                        f'mkdir "{top}/boss"; set -- "{top}/boss"; {start}'],
                       check=True, timeout=60)
        wait_until(lambda: "ready" in support.read_text(state / "out"), "it serves")
        with support.Api(f"unix:{state}/agents.sock") as client:
            acquired = client.acquire(runtime)
            made = list(top.glob(f"cordon/*/{acquired.sandbox.name}/agent"))
            assert len(made) == 1, support.read_text(state / "log")
            assert client.exec(acquired.id, ["true"]).result.exit_code == 0
            assert client.release(acquired.id).receipt.complete
        subprocess.run(["systemctl", "stop", unit], check=True, timeout=60)
        wait_until(lambda: not top.exists(), "nothing of the unit is left")
    finally:
        subprocess.run(["systemctl", "stop", unit], capture_output=True, timeout=60)
        subprocess.run(["rm", "-rf", state], check=True)
