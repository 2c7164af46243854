"""A private cordon instance, its command line and its gRPC API, for tests."""
import base64
import dataclasses
import json
import os
import pathlib
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time

import grpc

TOP = pathlib.Path(__file__).resolve().parents[2]
ROOT = pathlib.Path(os.environ.get("CORDON_ROOT", TOP / "build/root"))
SANITIZED = "sanitized" in str(ROOT)
CORDON = ROOT / "bin/cordon"
LIBEXEC = ROOT / "libexec/cordon"

ID_SPAN = range(1879048192, 1879048192 + 1024 * 65536)
AGENTS_UID = 1879048193
IDS_DIRECTORY = pathlib.Path("/run/cordon/ids")
OWN_CGROUP = "/cordon/"

# How long anything may take that normally takes well under a second. Generous,
# since two cores are shared with compilers; nothing waits this long when well.
PATIENCE = 30.0


def wait_until(condition, what, timeout=PATIENCE):
    """Polls until condition() is true and returns it; what names it in the failure."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout:.0f} s: {what}")
        time.sleep(0.02)


# ---------------------------------------------------------------- /proc


def read_text(path):
    """The file's text, or "" when it vanished or may not be read."""
    try:
        return pathlib.Path(path).read_bytes().decode("utf-8", "replace")
    except OSError:
        return ""


def read_link(path):
    try:
        return os.readlink(path)
    except OSError:
        return ""


def pids():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def host_uid(pid):
    for line in read_text(f"/proc/{pid}/status").splitlines():
        if line.startswith("Uid:"):
            return int(line.split()[2])
    return -1


def parent_of(pid):
    # After the last ')': the name may hold anything.
    fields = read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return int(fields[1]) if len(fields) > 1 else -1


def process_state(pid):
    fields = read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return fields[0] if fields else ""


def descendants(pid):
    children = {}
    for each in pids():
        children.setdefault(parent_of(each), []).append(each)
    found, todo = [], [pid]
    while todo:
        for child in children.get(todo.pop(), []):
            found.append(child)
            todo.append(child)
    return found


def describe_process(pid):
    command = read_text(f"/proc/{pid}/cmdline").replace("\0", " ").strip()
    return f"{pid} [{process_state(pid)}] uid {host_uid(pid)}: {command or read_text(f'/proc/{pid}/comm').strip()}"


def program_of(pid):
    return os.path.basename(read_link(f"/proc/{pid}/exe").removesuffix(" (deleted)"))


def processes_with(marker):
    """Processes that have this text in their command line."""
    marker = marker.encode() if isinstance(marker, str) else marker
    found = []
    for pid in pids():
        try:
            command = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if marker in command and pid != os.getpid():
            found.append(pid)
    return found


def resident_kib(pid):
    for line in read_text(f"/proc/{pid}/status").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    return 0


def cpu_ticks(pid):
    fields = read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


# ---------------------------------------------------------------- results


@dataclasses.dataclass
class Completed:
    status: int
    out: bytes
    err: bytes

    @property
    def json(self):
        try:
            return json.loads(self.out)
        except ValueError:
            raise AssertionError(f"no JSON: status {self.status}, out {self.out[:2000]!r}, "
                                 f"err {self.err[:2000]!r}") from None


def stream_bytes(stream):
    """The bytes of a stream object of `--json`."""
    if "base64" in stream:
        return base64.b64decode(stream["base64"])
    return stream["text"].encode()


# ---------------------------------------------------------------- instance


class Instance:
    """`cordon up` in a state directory of its own. stop() asserts that all went."""

    def __init__(self, *flags, runtime="jail", prefix=(), state=None, env=None, cwd=None):
        self.runtime = runtime  # of a sandbox that names none
        self.flags = ["--default-runtime", runtime, *(str(f) for f in flags)]
        self.prefix = [str(p) for p in prefix]
        self.own_state = state is None
        self.state = pathlib.Path(state or tempfile.mkdtemp(prefix="cordon-test-"))
        if self.own_state:
            self.state.chmod(0o711)  # frontends under other uids pass through it
        self.log = self.state / "test-log"
        self.process = None
        self.environment = {**os.environ, **(env or {})}
        self.output = []
        self.cwd = cwd

    # -- life

    def launch(self):
        """Starts it without waiting."""
        self.output = []
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [*self.prefix, str(CORDON), "up", "--state", str(self.state), *self.flags],
                stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL,
                env=self.environment, cwd=self.cwd, start_new_session=True)
        threading.Thread(target=self._read, args=(self.process.stdout,), daemon=True).start()
        return self

    def _read(self, stream):
        for line in stream:
            self.output.append(line.decode("utf-8", "replace").rstrip("\n"))

    def start(self):
        self.launch()
        wait_until(lambda: "ready" in self.output or self.process.poll() is not None,
                   f"`cordon up` is ready\n{self.tail()}")
        assert self.process.poll() is None, (
            f"`cordon up` ended with {self.process.returncode}\n{self.tail()}")
        return self

    def tail(self):
        return "\n".join(read_text(self.log).splitlines()[-40:])

    def stop(self):
        """SIGTERM; everything must be gone and the status 0."""
        if self.process is None:
            return
        family = descendants(self.process.pid)
        instance = self.name
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"`cordon up` did not end on SIGTERM\n{self.tail()}") from None
        self.process = None
        assert status == 0, f"`cordon up` ended with {status}\n{self.tail()}"
        left = [describe_process(p) for p in family if process_state(p) not in ("", "Z")]
        assert not left, f"processes outlived their instance: {left}"
        assert not self.traces(instance), f"left behind: {self.traces(instance)}"

    def restart(self):
        self.stop()
        self.start()

    def kill(self):
        """SIGKILL of `up` alone, and what a test must then clean with a restart."""
        self.process.kill()
        self.process.wait()
        self.process = None

    def dispose(self):
        """stop(), and its directory removed also when that failed."""
        try:
            self.stop()
        finally:
            if self.process is not None:
                for pid in [self.process.pid, *descendants(self.process.pid)]:
                    try:
                        os.kill(pid, signal.SIGKILL)
                    except OSError:
                        pass
            if self.own_state:
                shutil.rmtree(self.state, ignore_errors=True)

    def __enter__(self):
        try:
            return self.start()
        except BaseException:
            self.dispose()
            raise

    def __exit__(self, kind, value, trace):
        self.dispose()

    # -- parts

    def part(self, program):
        """The pid of a part that runs now: cordon-broker, cordon-agents."""
        def find():
            return [p for p in descendants(self.process.pid) if program_of(p) == program
                    and process_state(p) not in ("", "Z")]
        return wait_until(find, f"{program} runs\n{self.tail()}")[0]

    @property
    def broker(self):
        return self.part("cordon-broker")

    @property
    def agents(self):
        return self.part("cordon-agents")

    @property
    def name(self):
        """The instance's id, from the broker's private mounts; "" without root."""
        if self.process is None or self.process.poll() is not None:
            return ""
        for pid in descendants(self.process.pid):
            for line in read_text(f"/proc/{pid}/mountinfo").splitlines():
                point = line.split()[4]
                if point.startswith("/run/cordon/") and point.count("/") == 3:
                    return point.rsplit("/", 1)[1]
        return ""

    # -- what it made on this machine

    def traces(self, instance=None):
        """All that belongs to sandboxes of this instance: empty at rest."""
        instance = instance or self.name
        found = []
        if instance:
            for hierarchy in cgroup_hierarchies():
                base = hierarchy / "cordon" / instance
                for directory in base.glob("*/"):
                    found.append(f"cgroup {directory}")
            for pid in pids():
                if f"{OWN_CGROUP}{instance}/" in read_text(f"/proc/{pid}/cgroup"):
                    found.append(f"process in a cgroup: {describe_process(pid)}")
        if self.process is None:
            base = pathlib.Path("/run/cordon") / (instance or "none")
            if base.exists():
                found.append(f"directory {base}")
        for claim in IDS_DIRECTORY.glob("*") if IDS_DIRECTORY.is_dir() else []:
            # Of other instances, too, which take theirs back meanwhile.
            if read_link(claim).startswith(str(self.state)):
                found.append(f"id claim {claim.name}")
        records = self.state / "broker/records"
        if records.is_dir():
            found += [f"record {name}" for name in os.listdir(records)]
        for line in read_text("/proc/self/mountinfo").splitlines():
            point = line.split()[4]
            # That the state itself is a file system is the test's matter.
            inside = point.startswith(f"{self.state}/")
            if inside or (instance and instance in point):
                found.append(f"mount {point}")
        return sorted(set(found))

    def sandbox_processes(self):
        """Processes below the broker or in its cgroups: sandboxes and runtimes."""
        broker = self.broker
        found = set(descendants(broker))
        instance = self.name
        if instance:
            for pid in pids():
                if f"{OWN_CGROUP}{instance}/" in read_text(f"/proc/{pid}/cgroup"):
                    found.add(pid)
        # A detached runc's container hangs below whoever adopted it.
        for pid in pids():
            uid = host_uid(pid)
            if instance and uid in ID_SPAN and uid - ID_SPAN.start >= 65536:
                if f"{OWN_CGROUP}{instance}/" in read_text(f"/proc/{pid}/cgroup"):
                    found.add(pid)
        return sorted(found)

    def fingerprint(self):
        """What must be the same before and after a test that releases all."""
        broker = self.broker
        mounts = read_text(f"/proc/{broker}/mountinfo").splitlines()
        open_files = [read_link(f"/proc/{broker}/fd/{n}") for n in os.listdir(f"/proc/{broker}/fd")]
        return {
            "traces": self.traces(),
            "processes": [describe_process(p) for p in self.sandbox_processes()],
            "sandbox mounts": sorted(m.split()[4] for m in mounts if "/sandboxes/" in m.split()[4]),
            "sandbox directories": self._sandbox_directories(broker),
            "namespaces held by the broker": sorted(
                f for f in open_files if f.startswith(("net:[", "mnt:[", "pid:[", "user:["))),
            "network namespaces": self._network_namespaces(),
        }

    def _sandbox_directories(self, broker):
        instance = self.name
        base = f"/proc/{broker}/root/run/cordon/{instance}/sandboxes" if instance else \
            str(self.state / "broker/sandboxes")
        try:
            return sorted(os.listdir(base))
        except OSError:
            return []

    def _network_namespaces(self):
        """Those of the instance's processes."""
        found = set()
        for pid in [self.process.pid, *descendants(self.process.pid), *self.sandbox_processes()]:
            link = read_link(f"/proc/{pid}/ns/net")
            if link:
                found.add(link)
        return sorted(found)

    # -- the command line

    @property
    def address(self):
        return f"unix:{self.state}/agents.sock"

    def command(self, *arguments, prefix=()):
        return [*map(str, prefix), str(CORDON),
                *[a if isinstance(a, (str, bytes)) else str(a) for a in arguments]]

    def environ(self, env=None):
        return {**os.environ, "CORDON_AGENTS": self.address, **(env or {})}

    def cordon(self, *arguments, stdin=b"", timeout=90, prefix=(), env=None):
        run = subprocess.run(self.command(*arguments, prefix=prefix), input=stdin,
                             capture_output=True, timeout=timeout, env=self.environ(env))
        return Completed(run.returncode, run.stdout, run.stderr)

    def popen(self, *arguments, prefix=(), **keywords):
        options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE,
                   "stderr": subprocess.PIPE, **keywords}
        return subprocess.Popen(self.command(*arguments, prefix=prefix), env=self.environ(),
                                **options)

    def acquire(self, runtime, *flags):
        done = self.cordon("acquire", "--json", "--runtime", runtime, *flags)
        assert done.status == 0, done
        return done.json["id"]

    def release(self, sandbox):
        done = self.cordon("release", sandbox)
        assert done.status == 0, done


def sandbox_init(instance):
    """The inits of its sandboxes: children of the broker in their own cgroups."""
    broker = instance.broker
    return [pid for pid in instance.sandbox_processes() if parent_of(pid) == broker]


CGROUPS = pathlib.Path("/sys/fs/cgroup")


def is_cgroup_v2():
    return (CGROUPS / "cgroup.controllers").exists()


def cgroup_hierarchies():
    base = CGROUPS
    if is_cgroup_v2():
        return [base]
    return [p for p in base.iterdir() if p.is_dir() and not p.is_symlink()]


# ---------------------------------------------------------------- gRPC


def load_api():
    """Generates the stubs from ipc/agent.proto; returns (messages, services)."""
    directory = tempfile.mkdtemp(prefix="cordon-stubs-")
    try:
        subprocess.run(["protoc", f"-I{TOP}/ipc", f"--python_out={directory}",
                        f"--grpc_python_out={directory}", "agent.proto",
                        f"--plugin=protoc-gen-grpc_python={shutil.which('grpc_python_plugin')}"], check=True, capture_output=True, timeout=60)
        sys.path.insert(0, directory)
        import agent_pb2
        import agent_pb2_grpc
        sys.path.remove(directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return agent_pb2, agent_pb2_grpc


v1, v1_grpc = load_api()


class Refused(Exception):
    """An error status of the API."""

    def __init__(self, error):
        self.code = error.code().name
        metadata = dict(error.trailing_metadata() or ())
        self.reason = metadata.get("cordon-reason", "")
        self.detail = error.details()
        super().__init__(f"{self.code} {self.reason}: {self.detail}")


class Ended:
    """An exec's collected responses."""

    def __init__(self):
        self.started = None
        self.result = None
        self.out = b""
        self.err = b""

    def take(self, response):
        kind = response.WhichOneof("message")
        if kind == "started":
            self.started = response.started
        elif kind == "output":
            if response.output.stream == v1.STDOUT:
                self.out += response.output.data
            else:
                self.err += response.output.data
        else:
            self.result = response.result


class Api:
    """The gRPC API of an instance."""

    def __init__(self, address):
        options = [("grpc.max_receive_message_length", 64 << 20),
                   ("grpc.max_send_message_length", 64 << 20),
                   # Each Api a connection of its own: channels are pooled by default.
                   ("grpc.use_local_subchannel_pool", 1)]
        self.channel = grpc.insecure_channel(address, options)
        self.stub = v1_grpc.AgentsStub(self.channel)

    def close(self):
        self.channel.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def call(self, method, request, timeout=60):
        try:
            return getattr(self.stub, method)(request, timeout=timeout)
        except grpc.RpcError as error:
            raise Refused(error) from None

    def spec(self, runtime="", image="", limits=None, **fields):
        return v1.SandboxSpec(runtime=runtime, image=image, limits=v1.Limits(**(limits or {})),
                              **fields)

    def acquire(self, runtime="", **fields):
        return self.call("Acquire", v1.AcquireRequest(spec=self.spec(runtime, **fields)))

    def release(self, sandbox):
        return self.call("Release", v1.ReleaseRequest(id=sandbox))

    @staticmethod
    def exec_spec(argv, **fields):
        return v1.ExecSpec(argv=[a.encode() if isinstance(a, str) else a for a in argv], **fields)

    def run(self, argv, runtime="", sandbox=None, requests=(), timeout=60, **exec_fields):
        """Run to the end, collecting."""
        start = v1.ExecRequest(run=v1.RunStart(sandbox=sandbox or self.spec(runtime),
                                               exec=self.exec_spec(argv, **exec_fields)))
        return self._collect(self.stub.Run, [start, *requests], timeout)

    def exec(self, sandbox, argv, requests=(), timeout=60, **exec_fields):
        start = v1.ExecRequest(start=v1.ExecStart(id=sandbox,
                                                  exec=self.exec_spec(argv, **exec_fields)))
        return self._collect(self.stub.Exec, [start, *requests], timeout)

    def begin_run(self, argv, runtime="", timeout=60):
        """A call under way: cancel() ends it."""
        start = v1.ExecRequest(run=v1.RunStart(sandbox=self.spec(runtime),
                                               exec=self.exec_spec(argv)))
        return self._begun(self.stub.Run, start, timeout)

    def begin_exec(self, sandbox, argv, timeout=60):
        start = v1.ExecRequest(start=v1.ExecStart(id=sandbox, exec=self.exec_spec(argv)))
        return self._begun(self.stub.Exec, start, timeout)

    @staticmethod
    def _begun(method, start, timeout):
        call = method(iter([start]), timeout=timeout)
        assert next(call).HasField("started")
        return call

    def _collect(self, method, requests, timeout):
        ended = Ended()
        try:
            for response in method(iter(requests), timeout=timeout):
                ended.take(response)
        except grpc.RpcError as error:
            raise Refused(error) from None
        assert ended.result is not None, "the stream ended without a result"
        return ended


# ---------------------------------------------------------------- small helpers


def refused(call, *arguments, **keywords):
    """The error that the call ends with."""
    try:
        call(*arguments, **keywords)
    except Refused as error:
        return error
    raise AssertionError("it was not refused")


def still_serves(instance, runtime=""):
    done = instance.cordon("run", "--runtime", runtime, "--", "echo", "served")
    assert (done.status, done.out) == (0, b"served\n"), done


def make_world_readable(path):
    path.chmod(path.stat().st_mode | stat.S_IROTH | stat.S_IXOTH)


def as_uid(uid):
    """A command prefix that runs the rest under another uid, without groups."""
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
