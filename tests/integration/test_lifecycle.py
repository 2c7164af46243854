"""Instances and sandboxes from birth to receipt."""
import concurrent.futures
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile

import pytest

import support
from support import Refused, wait_until


def names(api):
    return {s.name for s in api.call("List", support.v1.ListRequest()).sandboxes}


# ---------------------------------------------------------------- sandboxes


def test_the_receipt_lists_what_was_removed(api):
    acquired = api.acquire()
    receipt = api.release(acquired.id).receipt
    assert receipt.complete
    assert not receipt.left
    kinds = {item.kind for item in receipt.removed}
    assert {"process", "cgroup", "directory", "id-range", "record"} <= kinds, receipt


def test_release_twice(api):
    acquired = api.acquire()
    assert api.release(acquired.id).receipt.complete
    with pytest.raises(Refused) as refused:
        api.release(acquired.id)
    assert refused.value.code == "NOT_FOUND"
    assert refused.value.reason in ("NO_SUCH_SANDBOX", "SANDBOX_GONE")


def test_release_ends_a_running_exec(service):
    sandbox = service.acquire(service.runtime)
    # Of this run: others on the machine have theirs.
    long = str(300_000 + os.getpid())
    process = service.popen("exec", "--json", sandbox, "--", "sh", "-c", f"echo up; exec sleep {long}")
    wait_until(lambda: support.processes_with(f"sleep\0{long}"), "the program runs")
    service.release(sandbox)
    out, err = process.communicate(timeout=60)
    assert process.returncode != 0
    assert b"sandbox_lost" in out or b"SANDBOX_GONE" in err or b"gone" in err, (out, err)


def test_as_many_long_command_lines_as_execs_may_run(api):
    """Each is a start message of nearly 1 MiB that the agent holds for a moment."""
    acquired = api.acquire(limits=dict(memory_bytes=1 << 30, pids=512))
    argv = ["true", *("x" * 100_000 for _ in range(9))]
    with concurrent.futures.ThreadPoolExecutor(60) as pool:
        ended = [f.result() for f in [pool.submit(api.exec, acquired.id, argv) for _ in range(60)]]
    assert {e.result.WhichOneof("status") for e in ended} == {"exit_code"}, ended
    assert {e.result.exit_code for e in ended} == {0}
    assert api.release(acquired.id).receipt.complete


def test_time_to_live(api):
    acquired = api.acquire(ttl_ms=1500)
    assert acquired.sandbox.name in names(api)
    wait_until(lambda: acquired.sandbox.name not in names(api), "its time to live ends it")


def test_time_to_live_ends_a_busy_sandbox(api):
    acquired = api.acquire(ttl_ms=2500)
    try:
        ended = api.exec(acquired.id, ["sleep", "300"])
        assert ended.result.verdict.control == support.v1.SANDBOX_LOST, ended.result
    except Refused as refused:
        assert refused.reason == "SANDBOX_GONE"


def test_idle_limit(api):
    acquired = api.acquire(idle_ms=1500)
    # A running exec is not idleness.
    assert api.exec(acquired.id, ["sleep", "3"]).result.exit_code == 0
    wait_until(lambda: acquired.sandbox.name not in names(api), "its idle limit ends it")


def test_inspect_shows_what_was_applied(service, api):
    acquired = api.acquire(limits={"memory_bytes": 128 << 20, "pids": 33})
    card = api.call("Inspect", support.v1.InspectRequest(id=acquired.id)).sandbox
    api.release(acquired.id)
    assert (card.runtime, card.state) == (service.runtime, "ready")
    assert (card.limits.memory_bytes, card.limits.pids) == (128 << 20, 33)
    assert card.limits.disk_bytes > 0
    assert card.id_range_start % 65536 == support.ID_SPAN.start % 65536
    assert card.id_range_start > support.AGENTS_UID
    assert service.runtime in card.isolation


def test_every_sandbox_has_an_id_range_of_its_own(api):
    first, second = api.acquire(), api.acquire()
    ranges = [s.sandbox.id_range_start for s in (first, second)]
    api.release(first.id)
    api.release(second.id)
    assert abs(ranges[0] - ranges[1]) >= 65536


def test_processes_run_under_the_ids_of_the_range(service, api):
    acquired = api.acquire()
    first = acquired.sandbox.id_range_start
    process = service.popen("exec", acquired.id, "--", "sleep", "307")
    pid = wait_until(lambda: support.processes_with(b"sleep\x00307")
                     and [p for p in support.processes_with(b"sleep\x00307")
                          if support.program_of(p) == "sleep"], "the program runs")[0]
    assert support.host_uid(pid) == first + 1000
    api.release(acquired.id)
    process.communicate(timeout=60)


# ---------------------------------------------------------------- instances


def test_sigterm_destroys_everything_and_exits_0(runtime):
    with support.Instance(runtime=runtime) as instance:
        for _ in range(3):
            instance.acquire(runtime)
        process = instance.popen("run", "--", "sleep", "300")
        wait_until(lambda: len(instance.sandbox_processes()) >= 5, "four sandboxes run")
        instance.stop()  # asserts status 0 and no trace
        process.communicate(timeout=60)
        assert process.returncode != 0


@pytest.mark.host
def test_sigterm_on_the_host_runtime():
    with support.Instance("--allow-host-runtime") as instance:
        process = instance.popen("run", "--runtime", "host", "--", "sleep", "311")
        wait_until(lambda: support.processes_with(b"sleep\x00311"), "the program runs")
        instance.stop()
        process.communicate(timeout=60)
        assert not [p for p in support.processes_with(b"sleep\x00311")
                    if support.program_of(p) == "sleep"]


def test_sigint_is_as_sigterm(runtime):
    with support.Instance(runtime=runtime) as instance:
        instance.acquire(runtime)
        instance.process.send_signal(signal.SIGINT)
        instance.stop()


def test_up_killed_and_started_again_on_the_same_state(runtime):
    instance = support.Instance(runtime=runtime)
    try:
        instance.start()
        name = instance.name
        before = instance.acquire(runtime)
        instance.acquire(runtime)
        family = descendants_and_sandboxes(instance)
        instance.kill()
        # Broker and frontend notice that their parent is gone, or the next one
        # ends them; sandboxes end with the broker's sockets.
        instance.start()
        assert instance.name == name, "the instance's id comes from its directory"
        wait_until(lambda: not instance.traces(), "what the first one left is destroyed")
        left = [support.describe_process(p) for p in family
                if support.process_state(p) not in ("", "Z")]
        assert not left, left
        assert instance.cordon("exec", before, "--", "true").status == 125
        assert instance.cordon("run", "--", "true").status == 0
    finally:
        instance.dispose()


def descendants_and_sandboxes(instance):
    return [p for p in {*support.descendants(instance.process.pid), *instance.sandbox_processes()}]


def test_a_second_up_on_the_same_state_is_refused():
    with support.Instance() as first:
        second = support.Instance(state=first.state)
        second.log = first.state / "second-log"
        second.launch()
        try:
            assert second.process.wait(30) not in (0, None)
        finally:
            second.process.kill()
            second.process.wait()
        assert "ready" not in second.output
        assert second.tail(), "it says why"
        assert first.cordon("run", "--", "true").status == 0
        second.process = None


@pytest.mark.host
def test_a_broker_that_died_is_started_again():
    with support.Instance("--allow-host-runtime") as instance:
        assert instance.cordon("run", "--runtime", "host", "--", "true").status == 0
        old = instance.broker
        os.kill(old, signal.SIGKILL)
        wait_until(lambda: instance.broker != old, "another broker runs")
        wait_until(lambda: instance.cordon("run", "--runtime", "host", "--", "true").status == 0,
                   "it serves")


@pytest.mark.host
def test_an_agents_frontend_that_died_is_started_again():
    with support.Instance("--allow-host-runtime") as instance:
        old = instance.agents
        os.kill(old, signal.SIGKILL)
        wait_until(lambda: instance.agents != old, "another frontend runs")
        wait_until(lambda: instance.cordon("run", "--runtime", "host", "--", "true").status == 0,
                   "it serves")


# ---------------------------------------------------------------- privileges


def capabilities(pid):
    fields = dict(line.split(":\t") for line in support.read_text(f"/proc/{pid}/status").splitlines()
                  if ":\t" in line)
    return fields


def test_the_frontend_holds_nothing(service):
    status = capabilities(service.agents)
    assert status["Uid"].split() == [str(support.AGENTS_UID)] * 4
    assert status["Gid"].split() == [str(support.AGENTS_UID)] * 4
    assert status["Groups"].split() == []
    for name in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"]:
        assert int(status[name], 16) == 0, name
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"
    # Nobody of its uid can look into it: its files in /proc are the kernel's.
    assert os.stat(f"/proc/{service.agents}/environ").st_uid == 0


# linux/capability.h; what each is for stands in docs/operations.md.
BROKER_KEEPS = {"CAP_CHOWN": 0, "CAP_DAC_OVERRIDE": 1, "CAP_FOWNER": 3, "CAP_KILL": 5,
                "CAP_SETGID": 6, "CAP_SETUID": 7, "CAP_SYS_ADMIN": 21, "CAP_SYS_RESOURCE": 24}

FOR_RUNTIMES = 1 << 12  # CAP_NET_ADMIN


def test_the_broker_is_bounded(service):
    status = capabilities(service.broker)
    own = capabilities("self")
    assert status["Seccomp"] == "2"
    assert status["NoNewPrivs"] == "1"
    kept = sum(1 << number for number in BROKER_KEEPS.values())
    # CAP_SYS_RESOURCE is kept where there was one.
    assert int(status["CapEff"], 16) == kept & int(own["CapEff"], 16)
    # What is permitted and not effective is a runtime's.
    for name in ["CapBnd", "CapPrm"]:
        assert int(status[name], 16) & ~FOR_RUNTIMES == kept & int(own[name], 16), name
    if not support.is_cgroup_v2():
        assert int(status["CapBnd"], 16) & FOR_RUNTIMES == 0
    for name in ["CapInh", "CapAmb"]:
        assert int(status[name], 16) == 0, name
    text = (support.TOP / "docs/operations.md").read_text()
    assert [name for name in BROKER_KEEPS if name not in text] == []


def test_the_host_runtime_is_refused_without_its_flag(api):
    with pytest.raises(Refused) as refused:
        api.run(["true"], runtime="host")
    assert refused.value.reason == "RUNTIME_NOT_ALLOWED"
    assert refused.value.code in ("FAILED_PRECONDITION", "INVALID_ARGUMENT")


def test_no_mount_is_seen_on_the_host(service):
    sandbox = service.acquire(service.runtime)
    mounts = support.read_text("/proc/self/mountinfo")
    service.release(sandbox)
    assert "/run/cordon" not in mounts


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_an_ordinary_user_has_the_host_runtime_alone():
    state = pathlib.Path(tempfile.mkdtemp(prefix="cordon-user-"))
    os.chown(state, 1000, 1000)
    user = support.as_uid(1000)
    instance = support.Instance("--allow-host-runtime", prefix=user, state=state,
                                env={"HOME": "/nonexistent"})
    instance.log = pathlib.Path(str(state) + ".log")
    try:
        instance.start()
        assert any("trust zone" in line.lower() for line in [*instance.output, instance.tail()]), \
            "it says that this is one trust zone"
        assert {support.host_uid(p) for p in support.descendants(instance.process.pid)} == {1000}
        done = instance.cordon("run", "--runtime", "host", "--", "id", "-u", prefix=user)
        assert (done.status, done.out) == (0, b"1000\n"), done
        for runtime in ["jail", "runc"]:
            done = instance.cordon("run", "--runtime", runtime, "--", "true", prefix=user)
            assert done.status == 125
            assert b"root" in done.err, "it says what is needed"
        listing = instance.cordon("runtimes", "--json", prefix=user).json
        runtimes = listing["runtimes"] if isinstance(listing, dict) else listing
        available = {r["name"]: r["available"] for r in runtimes}
        assert available["host"] and not available["runc"] and not available["jail"]
        for path in [state / "agents.sock", state / "broker.sock"]:
            assert path.stat().st_mode & 0o777 == 0o600
    finally:
        instance.dispose()
        shutil.rmtree(state, ignore_errors=True)
        instance.log.unlink(missing_ok=True)


# ---------------------------------------------------------------- activation


def test_parts_start_by_socket_activation():
    """Without `cordon up`: the two services by systemd-socket-activate."""
    state = pathlib.Path(tempfile.mkdtemp(prefix="cordon-activate-"))
    state.chmod(0o711)
    environment = {**os.environ, "CORDON_AGENTS": f"unix:{state}/agents.sock"}
    log = open(state / "log", "ab")
    parts = []

    def activate(socket_path, name, *command):
        parts.append(subprocess.Popen(
            ["systemd-socket-activate", f"--listen={state}/{socket_path}", f"--fdname={name}",
             *map(str, command)], stdout=log, stderr=log, stdin=subprocess.DEVNULL))
        wait_until(lambda: (state / socket_path).exists(), f"{socket_path} is there")

    def text():
        return support.read_text(state / "log")

    try:
        activate("broker.sock", "broker", support.LIBEXEC / "cordon-broker", "--state",
                 state / "broker", "--agents-uid", str(support.AGENTS_UID))
        os.chown(state / "broker.sock", support.AGENTS_UID, support.AGENTS_UID)
        activate("agents.sock", "agents", *support.as_uid(support.AGENTS_UID),
                 support.LIBEXEC / "cordon-agents", "--broker", state / "broker.sock")
        done = subprocess.run([str(support.CORDON), "run", "--", "echo", "activated"],
                              capture_output=True, timeout=60, env=environment)
        assert (done.returncode, done.stdout) == (0, b"activated\n"), (done, text())
    finally:
        for part in reversed(parts):
            part.send_signal(signal.SIGTERM)
        for part in reversed(parts):
            part.wait(30)
        log.close()
        shutil.rmtree(state, ignore_errors=True)
    assert [p.returncode for p in parts] == [0, 0], text()



# ---------------------------------------------------------------- nothing builds up


def kernel_objects():
    """What the kernel holds, machine-wide: other programs move it, too."""
    counts = {}
    for line in support.read_text("/proc/slabinfo").splitlines():
        fields = line.split()
        if fields and fields[0] == "net_namespace":
            counts["network namespaces"] = int(fields[1])
    for line in support.read_text("/proc/cgroups").splitlines()[1:]:
        name, _, count, _ = line.split()
        if name in ("memory", "pids"):
            counts[f"cgroups of {name}, those being removed included"] = int(count)
    return counts


def own_objects(instance):
    broker = instance.broker
    return {**instance.fingerprint(),
            "mounts": len(support.read_text(f"/proc/{broker}/mountinfo").splitlines()),
            "descriptors of the broker": len(os.listdir(f"/proc/{broker}/fd")),
            "descriptors of the frontend": len(os.listdir(f"/proc/{instance.agents}/fd"))}


def test_500_sandboxes_leave_nothing_behind():
    cycles = 500
    with support.Instance(runtime="jail") as instance, support.Api(instance.address) as api:
        def run(times):
            for _ in range(times):
                ended = api.run(["true"], runtime="jail")
                assert ended.result.exit_code == 0 and ended.result.receipt.complete, ended.result

        run(100)  # arenas and caches fill
        own, kernels = own_objects(instance), kernel_objects()
        resident = support.resident_kib(instance.broker)
        run(cycles)
        wait_until(lambda: own_objects(instance) == own, "the instance is as it was")
        # One of each that stayed would be 500 and more; the slack is for the
        # other programs of the machine.
        for kind, before in kernels.items():
            wait_until(lambda: kernel_objects()[kind] < before + cycles // 2, f"{kind} don't build up")
        assert support.resident_kib(instance.broker) < resident + 2048
