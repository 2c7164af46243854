"""Bytes that are no message, on every socket."""
import pathlib
import shutil
import socket
import struct
import subprocess
import sys
import tempfile

import pytest

import support
from support import still_serves, wait_until

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


def frame(kind, flags, stream, payload, length=None):
    length = len(payload) if length is None else length
    return struct.pack(">I", length)[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


GARBAGE = {
    "nothing": b"",
    "zeros": bytes(100_000),
    "ones": b"\xff" * 100_000,
    "random": bytes((n * 7919 + n // 256 * 104729) % 256 for n in range(100_000)),
    "http1": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "half-a-preface": PREFACE[:10],
    "preface-alone": PREFACE,
    "truncated-frame": PREFACE + SETTINGS + frame(1, 4, 1, b"abc", length=5000),
    "oversized-frame": PREFACE + SETTINGS + frame(0, 0, 1, bytes(50_000), length=0xFFFFFF),
    "bad-hpack": PREFACE + SETTINGS + frame(1, 4, 1, b"\xff" * 400),
    "data-on-no-stream": PREFACE + SETTINGS + frame(0, 0, 9, bytes(100)),
    "unknown-frames": PREFACE + SETTINGS + b"".join(frame(200 + n % 50, n, n, b"x" * 50) for n in range(200)),
    "settings-flood": PREFACE + SETTINGS * 5000,
    "ping-flood": PREFACE + SETTINGS + frame(6, 0, 0, bytes(8)) * 5000,
    "capnp-huge-segments": struct.pack("<II", 0xFFFFFFFF, 0xFFFFFFFF) * 100,
    "capnp-one-large-segment": struct.pack("<II", 0, 0x1FFFFFFF) + bytes(4096),
    "capnp-truncated": struct.pack("<II", 0, 64) + bytes(16),
    "capnp-wild-pointers": struct.pack("<II", 0, 4) + b"\xff\xff\xff\xff\xff\xff\xff\xff" * 4,
}


def send_garbage(path, data):
    """Writes it all, then reads until the peer closes or has nothing more to say."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(5)
        connection.connect(str(path))
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):
                pass
        except (OSError, socket.timeout):
            pass


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_on_the_agents_socket(service, name):
    frontend = service.agents
    send_garbage(service.state / "agents.sock", GARBAGE[name])
    assert service.agents == frontend, "the frontend survives"
    still_serves(service)


@pytest.mark.host
@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_on_the_agents_socket_of_the_host_runtime(host, name):
    frontend = host.agents
    send_garbage(host.state / "agents.sock", GARBAGE[name])
    assert host.agents == frontend, "the frontend survives"
    still_serves(host, "host")


@pytest.mark.host
@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_on_the_broker_socket_of_the_host_runtime(host, name):
    """Here the peer's uid is admitted, so the broker's decoder reads it."""
    broker = host.broker
    send_garbage(host.state / "broker.sock", GARBAGE[name])
    assert host.broker == broker, "the broker survives"
    still_serves(host, "host")


def test_garbage_on_the_broker_socket_from_the_frontends_uid(service):
    broker = service.broker
    code = ("import sys, pathlib; sys.path.insert(0, sys.argv[1])\n"
            "import socket\n"
            "data = pathlib.Path(sys.argv[3]).read_bytes()\n"
            "with socket.socket(socket.AF_UNIX) as c:\n"
            "    c.settimeout(5); c.connect(sys.argv[2])\n"
            "    try:\n"
            "        c.sendall(data); c.shutdown(socket.SHUT_WR)\n"
            "        while c.recv(65536): pass\n"
            "    except OSError: pass\n")
    directory = pathlib.Path(tempfile.mkdtemp(prefix="cordon-garbage-"))
    try:
        directory.chmod(0o755)
        for name, data in GARBAGE.items():
            path = directory / "data"
            path.write_bytes(data)
            subprocess.run([*support.as_uid(support.AGENTS_UID), sys.executable, "-c", code, "-",
                            str(service.state / "broker.sock"), str(path)],
                           check=True, timeout=60, cwd="/")
            assert service.broker == broker, f"the broker survives {name}"
        still_serves(service)
    finally:
        shutil.rmtree(directory)


@pytest.mark.parametrize("uid", [0, 1234])
def test_the_broker_disconnects_every_other_uid(service, uid):
    code = ("import socket, sys\n"
            "with socket.socket(socket.AF_UNIX) as c:\n"
            "    c.settimeout(10); c.connect(sys.argv[1])\n"
            "    print(len(c.recv(100)))\n")
    run = subprocess.run([*(support.as_uid(uid) if uid else []), sys.executable, "-c", code,
                          str(service.state / "broker.sock")], capture_output=True, timeout=60, cwd="/")
    # Root may connect, and is told nothing; others can't even connect.
    assert run.stdout == b"0\n" or b"PermissionError" in run.stderr or b"ConnectionReset" in run.stderr, run


def test_many_connections_that_say_nothing(service):
    """They use up what one uid may have, and nobody else's."""
    quiet = []
    try:
        for _ in range(200):
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(str(service.state / "agents.sock"))
            quiet.append(connection)
        done = service.cordon("run", "--", "echo", "served", prefix=support.as_uid(1234))
        assert (done.status, done.out) == (0, b"served\n"), done
    finally:
        for connection in quiet:
            connection.close()
    wait_until(lambda: service.cordon("run", "--", "true").status == 0, "they are forgotten")
