"""The boundary card against the truth: what a program sees from inside, and what
the host's kernel tells root, whom nothing is hidden from."""
import ctypes
import errno
import json
import os
import pathlib
import re
import signal

import pytest

import support
from support import wait_until

v1 = support.v1
NAMESPACES = ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"]

# What a program finds about itself.
LOOK = """
import json, os, resource
def text(path):
    return open(path, encoding="latin-1").read()
status = dict(line.split(":", 1) for line in text("/proc/self/status").splitlines())
print(json.dumps({
    "mountinfo": text("/proc/self/mountinfo"),
    "status": {key: value.strip() for key, value in status.items()},
    "namespaces": {name: os.readlink("/proc/self/ns/" + name) for name in %r},
    "uid_map": text("/proc/self/uid_map"),
    "gid_map": text("/proc/self/gid_map"),
    "net": text("/proc/net/dev"),
    "core": resource.getrlimit(resource.RLIMIT_CORE),
}))
""" % NAMESPACES


# prctl(PR_SCHED_CORE, PR_SCHED_CORE_GET, 0, PIDTYPE_PID, &cookie): [errno, cookie].
OWN_COOKIE = """
import ctypes, json
libc, cookie = ctypes.CDLL(None, use_errno=True), ctypes.c_ulong()
failed = libc.prctl(62, 0, 0, 0, ctypes.byref(cookie))
print(json.dumps([ctypes.get_errno() if failed else 0, cookie.value]))
"""


def core_cookie(pid):
    """(errno, cookie) of that process, which root may ask for."""
    libc, cookie = ctypes.CDLL(None, use_errno=True), ctypes.c_ulong()
    failed = libc.prctl(62, 0, pid, 0, ctypes.byref(cookie))
    return ctypes.get_errno() if failed else 0, cookie.value


class Sandbox:
    def __init__(self, instance, *flags, runtime=None):
        self.instance = instance
        self.id = instance.acquire(runtime or instance.runtime, *flags)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.instance.release(self.id)

    @property
    def info(self):
        done = self.instance.cordon("inspect", "--json", self.id)
        assert done.status == 0, done
        return done.json

    @property
    def card(self):
        return self.info["card"]

    @property
    def text(self):
        done = self.instance.cordon("inspect", self.id)
        assert done.status == 0, done
        return done.out.decode()

    def python(self, program):
        done = self.instance.cordon("exec", "--json", self.id, "--", "/usr/bin/python3", "-c", program)
        assert done.json["exit_code"] == 0, done.json
        return support.stream_bytes(done.json["stdout"]).decode()

    def look(self):
        return json.loads(self.python(LOOK))

    @property
    def init(self):
        """Its pid on the host: the one process under the agent's uid of its range."""
        uid = self.info["id_range_start"] + 65000
        found = [p for p in support.pids() if support.host_uid(p) == uid]
        assert len(found) == 1, found
        return found[0]


@pytest.fixture
def sandbox(service):
    with Sandbox(service) as made:
        yield made


def parse_mountinfo(text):
    mounts = []
    for line in text.splitlines():
        own, system = line.split(" - ")
        fields, rest = own.split(), system.split()
        mounts.append({"root": fields[3], "where": fields[4], "flags": fields[5],
                       "type": rest[0], "source": rest[1], "options": rest[2]})
    return mounts


def without_ids(mount):
    """The kernel shows ids in options as the reader's namespace numbers them."""
    options = [o for o in mount["options"].split(",") if not o.startswith(("uid=", "gid="))]
    return {**mount, "options": options}


def status_of(pid):
    lines = support.read_text(f"/proc/{pid}/status").splitlines()
    return {key: value.strip() for key, value in (line.split(":", 1) for line in lines)}


def inode(link):
    return int(re.fullmatch(r"\w+:\[(\d+)\]", link).group(1))


# ---------------------------------------------------------------- the facts


def test_mounts_are_those_seen_from_inside(sandbox):
    seen = parse_mountinfo(sandbox.look()["mountinfo"])
    card = sandbox.card["mounts"]
    assert (card["source"], "missing" in card) == ("kernel", False)
    assert [without_ids(m) for m in card["mounts"]] == [without_ids(m) for m in seen]
    assert len(seen) > 15


@pytest.mark.parametrize("flags", [(), ("--disk", "8M", "--tmp", "4M", "--memory", "128M")])
def test_the_plan_is_what_is_mounted_and_nothing_else_is(service, flags):
    with Sandbox(service, *flags) as sandbox:
        plan = sandbox.card["plan"]
        seen = {m["where"]: m["flags"].split(",") for m in parse_mountinfo(sandbox.look()["mountinfo"])}
        sizes = {m["where"]: m["options"].split(",") for m in sandbox.card["mounts"]["mounts"]}
    assert len(plan) == len({m["where"] for m in plan}), "one place twice"
    assert {m["where"] for m in plan} == set(seen)
    for mount in plan:
        lacking = set(mount["flags"].split(",")) - set(seen[mount["where"]])
        assert not lacking, (mount, seen[mount["where"]])
    if flags:
        assert "size=8192k" in sizes["/work"] and "size=4096k" in sizes["/tmp"], sizes


@pytest.mark.parametrize("runtime", ["jail"], indirect=True)
def test_a_writable_root_is_in_the_plan(service):
    with Sandbox(service, "--writable-root", "8M") as sandbox:
        plan = {m["where"]: m for m in sandbox.card["plan"]}
        seen = {m["where"]: m for m in parse_mountinfo(sandbox.look()["mountinfo"])}
    assert set(plan) == set(seen)
    for where in ("/", "/usr"):
        assert plan[where]["what"].startswith("overlay over")
        assert seen[where]["type"] == "overlay"
    for where, mount in plan.items():
        assert set(mount["flags"].split(",")) <= set(seen[where]["flags"].split(",")), mount


def test_what_an_image_brings_is_in_the_plan(service, image_directory):
    image = image_directory / "card-image"
    try:
        for name in ("usr", "bin", "opt x", "lib64"):
            (image / name).mkdir(parents=True)
        (image / "bin/sleep").write_bytes(pathlib.Path("/bin/sleep").read_bytes())
        with Sandbox(service, "--image", "card-image") as sandbox:
            card = sandbox.card
    finally:
        support.shutil.rmtree(image)
    planned = {m["where"] for m in card["plan"]}
    assert planned == {m["where"] for m in card["mounts"]["mounts"]}
    assert {"/usr", "/bin", "/lib64", "/opt\\040x"} <= planned
    assert card["plan"][0]["what"] == "image card-image"


def test_status_is_the_inits(sandbox):
    truth, card, inside = status_of(sandbox.init), sandbox.card, sandbox.look()["status"]
    init = card["init"]
    assert (init["source"], init["from"]) == ("kernel", "/proc/PID/status of the init")
    assert init["uids"] == [int(n) for n in truth["Uid"].split()]
    assert init["gids"] == [int(n) for n in truth["Gid"].split()]
    assert init["no_new_privs"] is True and truth["NoNewPrivs"] == inside["NoNewPrivs"] == "1"
    sets = {s["set"]: s for s in init["capabilities"]}
    for name, key in {"effective": "CapEff", "permitted": "CapPrm", "bounding": "CapBnd",
                      "inheritable": "CapInh", "ambient": "CapAmb"}.items():
        assert sets[name]["mask"] == int(truth[key], 16), name
        assert sets[name]["names"] == ["cap_kill", "cap_setgid", "cap_setuid"]
        # A program never has one that the init lacks.
        assert int(inside[key], 16) & ~sets[name]["mask"] == 0


def test_filters_are_counted(service, sandbox):
    seccomp, inside = sandbox.card["seccomp"], sandbox.look()["status"]
    assert seccomp["mode"] == 2
    assert seccomp["in_force"] == int(status_of(sandbox.init)["Seccomp_filters"])
    assert seccomp["of_service"] == int(status_of(service.broker)["Seccomp_filters"]) > 0
    assert seccomp["in_force"] == seccomp["of_service"] + 1
    assert seccomp["workload_filters"] == 1
    assert int(inside["Seccomp_filters"]) == seccomp["in_force"] + seccomp["workload_filters"]
    assert seccomp["service_refused_calls"] > 20
    assert 250 < seccomp["agent"]["calls"] < seccomp["agent"]["known_calls"]
    assert seccomp["workload"]["profile"] == "default"


# Runs the rest of its arguments behind one more filter, which lets all calls pass.
BEHIND_A_FILTER = """
import ctypes, os, struct, sys
program = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0x7fff0000), 8)
class Filter(ctypes.Structure):
    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_void_p)]
libc = ctypes.CDLL(None, use_errno=True)
filter = Filter(1, ctypes.addressof(program))
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.byref(filter), 0, 0):
    sys.exit(os.strerror(ctypes.get_errno()))
os.execvp(sys.argv[1], sys.argv[1:])
"""


def test_filters_that_the_service_was_started_behind_are_counted():
    """As those of a systemd unit or a container: every program has them, too."""
    instance = support.Instance(prefix=[support.sys.executable, "-c", BEHIND_A_FILTER])
    try:
        instance.start()
        with Sandbox(instance) as sandbox:
            seccomp, inside = sandbox.card["seccomp"], sandbox.look()["status"]
    finally:
        instance.dispose()
    outer = int(status_of("self")["Seccomp_filters"]) + 1
    assert seccomp["of_service"] == outer + 1, "and the broker's own"
    assert seccomp["in_force"] == outer + 2, "and the agent's"
    assert int(inside["Seccomp_filters"]) == outer + 3, "and the profile"


def test_maps_are_those_seen_from_inside(sandbox):
    card, inside = sandbox.card, sandbox.look()
    for name in ("uid_map", "gid_map"):
        assert card[name]["source"] == "kernel"
        lines = [[line["inside"], line["outside"], line["count"]] for line in card[name]["lines"]]
        assert lines == [[int(n) for n in line.split()] for line in inside[name].splitlines()]
    assert card["uid_map"]["lines"][0]["outside"] == sandbox.info["id_range_start"]


def test_namespaces_are_its_own(service, sandbox):
    card = {fact["kind"]: fact for fact in sandbox.card["namespaces"]}
    inside = {name: inode(link) for name, link in sandbox.look()["namespaces"].items()}
    assert list(card) == NAMESPACES
    for name, fact in card.items():
        host = os.stat(f"/proc/self/ns/{name}").st_ino
        assert fact["service_inode"] == host, name
        assert inside[name] != host, name
        assert fact["source"] == "kernel"
        # Root, whom the broker is not like, sees the same as a program.
        assert inode(os.readlink(f"/proc/{sandbox.init}/ns/{name}")) == inside[name]
        if service.runtime == "jail":
            assert (fact["inode"], fact["own"]) == (inside[name], True), name
            assert "missing" not in fact
        else:
            # Not known: said so, with what can be concluded all the same.
            assert fact["inode"] is None and "trace" in fact["missing"], name
            known = name in ("user", "mnt", "pid", "net")
            assert fact["own"] is (True if known else None), name
            assert bool(fact["shown_by"]) == known


def test_two_sandboxes_share_no_namespace(service):
    with Sandbox(service) as first, Sandbox(service) as second:
        inodes = [{f["kind"]: f["inode"] for f in s.card["namespaces"]} for s in (first, second)]
    if service.runtime == "jail":
        for name in NAMESPACES:
            assert inodes[0][name] != inodes[1][name], name


def test_rlimits_are_the_inits(sandbox):
    limits = {limit["name"]: limit for limit in sandbox.card["rlimits"]["limits"]}
    truth = support.read_text(f"/proc/{sandbox.init}/limits").splitlines()[1:]
    assert len(limits) == len(truth)
    for line in truth:
        name, rest = line[:25].strip(), line[25:].split()
        assert [limits[name]["soft"], limits[name]["hard"]] == rest[:2], name
    core = limits["Max core file size"]
    assert [int(core["soft"]), int(core["hard"])] == sandbox.look()["core"] == [1, 1]


def test_network_is_that_of_its_namespace(sandbox):
    assert [i["name"] for i in sandbox.card["network"]["interfaces"]] == ["lo"]
    talk = """
import socket
here = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
here.bind(("127.0.0.1", 0))
here.sendto(b"x" * 1000, here.getsockname())
print(len(here.recv(2000)))
"""
    sandbox.python(talk)
    shown = sandbox.card["network"]["interfaces"]
    seen = [line.split() for line in sandbox.look()["net"].splitlines()[2:]]
    assert [[i["name"] + ":", i["received_bytes"], i["sent_bytes"]] for i in shown] == \
        [[line[0], int(line[1]), int(line[9])] for line in seen]
    assert shown[0]["received_bytes"] > 1000


def test_core_scheduling_is_in_force_or_says_why_not(service):
    """Two sandboxes' cookies differ, and a program has its sandbox's. Where the
    host has no core scheduling: the reason is the kernel's own."""
    with Sandbox(service) as first, Sandbox(service) as second:
        cards = [s.card["core_scheduling"] for s in (first, second)]
        inside = [json.loads(s.python(OWN_COOKIE)) for s in (first, second)]
        inits = [core_cookie(s.init) for s in (first, second)]
    errno_here, own = core_cookie(0)
    assert own == 0
    notes = next(r["notes"] for r in service.cordon("runtimes", "--json").json["runtimes"]
                 if r["name"] == service.runtime)
    noted = [n for n in notes if n.startswith("no core scheduling: ")]
    smt = support.read_text("/sys/devices/system/cpu/smt/active").strip() != "0"
    if errno_here == 0:
        for card, told, of_init in zip(cards, inside, inits):
            assert card["cookie"] and "missing" not in card, card
            assert "PR_SCHED_CORE_GET" in card["from"]
            assert told == [0, card["cookie"]] and of_init == (0, card["cookie"])
        assert cards[0]["cookie"] != cards[1]["cookie"]
        assert not noted
        return
    assert errno_here in (errno.ENODEV, errno.EINVAL)
    for card, told in zip(cards, inside):
        assert card["cookie"] is None and told == [errno_here, 0]
        assert ("SMT is off" in card["missing"]) == (not smt), card
        assert ("CONFIG_SCHED_CORE" in card["missing"]) == (errno_here == errno.EINVAL), card
        # Where it would be needed, it is also said before there is a sandbox.
        assert noted == ([f"no core scheduling: {card['missing']}"] if smt else [])


def cgroup_file(instance, sandbox, group, file):
    name = sandbox.info["name"]
    for hierarchy in support.cgroup_hierarchies():
        path = hierarchy / "cordon" / instance.name / name / group / file
        if path.exists():
            return path.read_text().strip()
    return None


def test_limits_are_what_the_cgroups_say(service):
    values = []
    for memory, pids, cpus in (("64M", "20", "0.5"), ("128M", "40", "1")):
        with Sandbox(service, "--memory", memory, "--pids", pids, "--cpus", cpus,
                     "--disk", "8M", "--tmp", "8M", "--shm", "8M") as sandbox:
            limits = sandbox.card["limits"]
            assert limits["source"] == "kernel"
            for limit in limits["limits"]:
                truth = cgroup_file(service, sandbox, limit["group"], limit["file"])
                assert limit["value"] == truth, limit
                assert ("missing" in limit) == (truth is None), limit
            values.append({(limit["group"], limit["file"]): limit["value"]
                           for limit in limits["limits"]})
    memory = "memory.max" if ("work", "memory.max") in values[0] else "memory.limit_in_bytes"
    assert [int(v["work", memory]) for v in values] == [64 << 20, 128 << 20]
    assert [v["work", "pids.max"] for v in values] == ["20", "40"]
    cpu = "cpu.max" if ("work", "cpu.max") in values[0] else "cpu.cfs_quota_us"
    assert [int(v["work", cpu].split()[0]) for v in values] == [50000, 100000]
    assert values[0]["agent", memory] == values[1]["agent", memory]


def test_a_fact_that_the_kernel_changed_is_on_the_card(service, sandbox):
    """Read back, and not what was asked for."""
    name = sandbox.info["name"]
    path = next(h / "cordon" / service.name / name / "work/pids.max"
                for h in support.cgroup_hierarchies()
                if (h / "cordon" / service.name / name / "work/pids.max").exists())
    path.write_text("17")
    limits = {(l["group"], l["file"]): l["value"] for l in sandbox.card["limits"]["limits"]}
    assert limits["work", "pids.max"] == "17"
    assert sandbox.info["limits"]["pids"] != 17


def test_another_profile_is_another_card(service):
    cards = []
    for profile in ("default", "tuned"):
        with Sandbox(service, "--seccomp", profile) as sandbox:
            cards.append(sandbox.card["seccomp"])
    assert [c["workload"]["profile"] for c in cards] == ["default", "tuned"]
    assert cards[1]["workload"]["calls"] <= 70 < cards[0]["workload"]["calls"]
    assert cards[0]["agent"] == cards[1]["agent"]


# ---------------------------------------------------------------- how it is told


def test_the_runtime_and_who_chooses_arguments(service, sandbox):
    card = sandbox.card
    assert card["is_sandbox"] is True
    offered = {r["name"]: r for r in service.cordon("runtimes", "--json").json["runtimes"]}
    assert card["runtime_version"] == offered[service.runtime]["version"] != ""
    assert card["arguments_chosen_by"] == "the program itself, filtered by seccomp"


def test_text_has_every_part(sandbox):
    text, card = sandbox.text, sandbox.card
    for label in ("runtime version", "arguments", "init", "no new privs", "capabilities", "seccomp",
                  "uid map", "gid map", "namespaces", "mounts", "mount plan [broker]",
                  "cgroup limits", "rlimits", "network", "core scheduling"):
        assert re.search(f"^{re.escape(label)}  ", text, re.M), label
    for mount in card["mounts"]["mounts"]:
        assert f"{mount['where']}  {mount['type']}" in text
    assert "NONE" not in text


def test_the_api_says_where_each_fact_is_from(api):
    acquired = api.acquire()
    assert not acquired.sandbox.HasField("card")
    card = api.call("Inspect", v1.InspectRequest(id=acquired.id)).sandbox.card
    listed = api.call("List", v1.ListRequest()).sandboxes
    api.release(acquired.id)
    assert not any(s.HasField("card") for s in listed)
    for part in (card.init, card.seccomp, card.uid_map, card.gid_map, card.mounts, card.limits,
                 card.rlimits, card.network, card.core_scheduling, *card.namespaces):
        assert part.origin.source == v1.KERNEL, part
        assert getattr(part.origin, "from"), part


def test_no_init_no_card(service):
    with Sandbox(service) as sandbox:
        os.kill(sandbox.init, signal.SIGKILL)
        wait_until(lambda: sandbox.info["state"] == "lost", "it is lost")
        assert "does not run" in sandbox.card["missing"]
        assert list(sandbox.card) == ["missing"]
        assert "not known: the sandbox's init does not run" in sandbox.text


def test_inspecting_does_not_hold_up_the_broker(service, api):
    acquired = api.acquire()
    before = len(support.read_text(service.log))
    for _ in range(100):
        api.call("Inspect", v1.InspectRequest(id=acquired.id))
    api.release(acquired.id)
    # Wall time is the machine's as well: only what was spent on a CPU counts.
    for spent in re.findall(r"ms \((\S+) ms on the CPU\): inspect", support.read_text(service.log)[before:]):
        assert float(spent) < 5, spent


@pytest.mark.host
def test_host_says_that_it_is_no_sandbox(host):
    with Sandbox(host, runtime="host") as sandbox:
        card, text = sandbox.card, sandbox.text
    assert card["is_sandbox"] is False
    assert card["arguments_chosen_by"] == "the program itself, unfiltered"
    assert text.splitlines()[0].startswith("name")
    assert re.search("^boundary +NONE. This is not a sandbox", text, re.M)
    assert card["plan"] == []
    assert card["seccomp"]["agent"] is None and card["seccomp"]["workload"] is None
    assert card["seccomp"]["in_force"] == card["seccomp"]["of_service"]
    assert card["seccomp"]["workload_filters"] == 0
    assert card["mounts"]["mounts"] is None and "host's mounts" in card["mounts"]["missing"]
    assert card["limits"]["limits"] is None and card["limits"]["missing"]
    assert card["core_scheduling"]["cookie"] is None
    assert card["core_scheduling"]["missing"] == "it is no sandbox"
    own = {fact["kind"]: fact["own"] for fact in card["namespaces"]}
    assert own["pid"] is False and own["net"] is False and own["mnt"] is False
    assert not any(own.values())
    assert card["init"]["uids"] == [os.getuid()] * 4
