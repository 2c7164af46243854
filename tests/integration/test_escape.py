"""The escape suite: contained in every sandbox, and able to escape where nothing holds it."""
import os
import pathlib
import subprocess

import pytest

import support

# What each program may be stopped by. More than one name where the
# kernel decides (a burner can reach its CPU limit or the deadline first).
THIRTEEN = {
    "network": 2,      # connect outside, raw socket
    "filesystem": 3,   # write outside, /etc/shadow, mount
    "memory": 2,       # a gigabyte; three children together
    "cpu_time": 1,
    "wall_clock": 1,
    "processes": 1,
    "output": 1,
    "file_size": 1,
    "files": 1,
}


def table(instance, *flags, timeout=300):
    done = instance.cordon("escape", "--json", *flags, timeout=timeout)
    return done.status, done.json


def test_thirteen_of_thirteen_are_contained(service):
    status, result = table(service, "--runtime", service.runtime)
    assert result["runtime"] == service.runtime
    bad = [row for row in result["rows"] if row["outcome"] != "contained"]
    assert not bad, bad
    assert (status, result["contained"], result["escaped"], result["inconclusive"]) == (0, 13, 0, 0)
    controls = {}
    for row in result["rows"]:
        assert row["evidence"], row
        controls[row["control"]] = controls.get(row["control"], 0) + 1
    assert controls == THIRTEEN, result["rows"]


def test_the_table_for_people_has_a_line_per_program(service):
    done = service.cordon("escape", timeout=300)
    assert done.status == 0, done
    text = done.out.decode()
    assert text.count("contained") >= 13
    for control in THIRTEEN:
        assert control in text


def test_the_extended_set_is_contained(service):
    status, result = table(service, "--runtime", service.runtime, "--extended")
    bad = [row for row in result["rows"] if row["outcome"] != "contained"]
    assert not bad, bad
    assert status == 0
    assert len(result["rows"]) >= 13 + 14, [row["program"] for row in result["rows"]]


def test_on_the_host_runtime_as_root_at_least_five_escape(host):
    mounts = support.read_text("/proc/self/mountinfo")
    status, result = table(host, "--runtime", "host")
    escaped = [row["program"] for row in result["rows"] if row["outcome"] == "escaped"]
    assert status != 0
    assert result["escaped"] == len(escaped) >= 5, result["rows"]
    assert result["contained"] + result["escaped"] + result["inconclusive"] == len(result["rows"]) == 13
    assert support.read_text("/proc/self/mountinfo") == mounts, "the suite cleans up its mount"


@pytest.mark.host
def test_every_listener_is_reached_where_nothing_is_in_between(host):
    """Else not to reach it would prove nothing."""
    _, result = table(host, "--runtime", "host", "--only", "connect")
    row, = result["rows"]
    assert row["outcome"] == "escaped"
    wanted = ["tcp 127.0.0.1 port", "udp 127.0.0.1 port", "abstract unix socket"]
    if pathlib.Path("/proc/net/if_inet6").exists():
        wanted.append("tcp ::1 port")
    assert [name for name in wanted if name not in row["evidence"]] == [], row


@pytest.fixture
def veth_namespace():
    """A network namespace with a veth pair: its address is `outside` to a sandbox."""
    name = f"cordon-test-{os.getpid()}"
    def ip(*arguments):
        subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=30)
    ip("netns", "add", name)
    try:
        ip("-n", name, "link", "set", "lo", "up")
        ip("-n", name, "link", "add", "veth-a", "type", "veth", "peer", "name", "veth-b")
        ip("-n", name, "addr", "add", "192.0.2.1/30", "dev", "veth-a")
        ip("-n", name, "link", "set", "veth-a", "up")
        ip("-n", name, "link", "set", "veth-b", "up")
        yield name
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=True, timeout=30)


def test_a_veth_address_outside_is_not_reached(veth_namespace, runtime):
    # Not `ip netns exec`, which mounts another /sys, without cgroups.
    inside = ["nsenter", f"--net=/run/netns/{veth_namespace}"]
    with support.Instance(runtime=runtime, prefix=inside) as instance:
        def escape(*flags):
            return instance.cordon("escape", "--json", *flags, prefix=inside, timeout=300)
        done = escape("--only", "connect", "--connect-address", "192.0.2.1")
        assert done.status == 0, done
        rows = done.json["rows"]
        assert rows and all((r["outcome"], r["control"]) == ("contained", "network") for r in rows)
    # The same listener is reached where nothing is in between: the test can fail.
    with support.Instance("--allow-host-runtime", prefix=inside) as instance:
        done = instance.cordon("escape", "--json", "--runtime", "host", "--only", "connect",
                               "--connect-address", "192.0.2.1", prefix=inside, timeout=300)
        assert done.status != 0
        assert [r["outcome"] for r in done.json["rows"]] == ["escaped"]
