#!/usr/bin/python3
"""A vm-agent that lies: what a guest that was taken over may send to the frontend.

Started by the host runtime in the place of vm-agent, with the control socket as
fd 0. How it behaves, and the frames that it sends, stand in files in HERE, which
test_hostile_guest.py makes and writes into its copy of this program.
"""
import os
import pathlib
import socket
import struct
import threading
import time

HERE = pathlib.Path("@HERE@")
MODE = (HERE / "mode").read_text()
STREAM = 2  # ipc/control.h


def frame(name):
    """One frame (ipc/framing.h) with the prepared message of that name."""
    message = (HERE / name).read_bytes()
    return struct.pack("<II", len(message), 0x31445243) + message


def wait_for_start(stream):
    """Until the frontend has sent something, which is `start`."""
    if not stream.recv(1):
        raise ConnectionError


PEERS = []


def lingering_socket():
    """Whoever closes it last waits for what it holds, at most 20 s."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        slow = socket.create_connection(server.getsockname())
        PEERS.append(server.accept()[0])
    slow.setblocking(False)
    try:
        while slow.send(bytes(65536)):
            pass
    except BlockingIOError:
        pass
    slow.setblocking(True)
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 20))
    return slow


def behave(stream):
    def send(*names):
        for name in names:
            stream.sendall(frame(name))

    if MODE == "silent":
        time.sleep(600)
    if MODE == "hello-that-lingers":
        slow = lingering_socket()
        socket.send_fds(stream, [frame("hello")], [slow.fileno()])
        slow.close()
    elif MODE == "output-before-hello":
        send("output", "hello")
    elif MODE == "garbage-before-hello":
        stream.sendall(os.urandom(5000))
    elif MODE != "hello-of-another-version":
        send("hello")
    else:
        send("hello-2")
    wait_for_start(stream)

    if MODE == "good":
        send("started", "output", "exited-4")
    elif MODE == "started-only":
        send("started")
    elif MODE == "never-answers":
        pass
    elif MODE == "garbage":
        stream.sendall(os.urandom(100_000))
    elif MODE == "oversized":
        stream.sendall(struct.pack("<II", 0x7FFFFFF8, 0x31445243) + bytes(200_000))
    elif MODE == "odd-length":
        stream.sendall(struct.pack("<II", 13, 0x31445243) + bytes(200))
    elif MODE == "zero-length":
        stream.sendall(struct.pack("<II", 0, 0x31445243) * 1000)
    elif MODE == "wild-pointers":
        message = struct.pack("<II", 0, 8) + b"\xff" * 64
        stream.sendall(struct.pack("<II", len(message), 0x31445243) + message)
    elif MODE == "truncated":
        send("started")
        stream.sendall(frame("output")[:-8])
        stream.shutdown(socket.SHUT_RDWR)
    elif MODE == "eof":
        stream.shutdown(socket.SHUT_RDWR)
    elif MODE == "dies":
        os._exit(1)
    elif MODE == "exited-first":
        send("exited")
    elif MODE == "started-twice":
        send("started", "started", "exited")
    elif MODE == "exited-twice":
        send("started", "exited", "exited", "exited")
    elif MODE == "output-after-exited":
        send("started", "exited", "output", "output")
    elif MODE == "failed-after-started":
        send("started", "failed")
    elif MODE == "hello-again":
        send("started", "hello", "exited")
    elif MODE == "another-exec":
        send("started-99", "output-99", "exited-99")
    elif MODE == "offset-backwards":
        send("started", "output-far", "output", "exited-4")
    elif MODE == "offset-at-the-end":
        send("started", "output-wrap", "exited")
    elif MODE == "endless-credit":
        while True:
            send("credit")
    elif MODE == "endless-output":
        send("started")
        while True:
            send("output-large")
    elif MODE == "endless-empty-output":
        send("started")
        while True:
            send("output-empty")
    elif MODE == "totals-that-lie":
        send("started", "output", "exited-wild")
    elif MODE == "text-that-is-no-text":
        send("started", "exited-text")
    else:
        raise ValueError(MODE)
    while stream.recv(65536):  # until the frontend has had enough
        pass


def serve(stream):
    stream.setblocking(True)  # it came as it suits an event loop
    try:
        behave(stream)
    except OSError:
        pass
    finally:
        stream.close()


def main():
    control = socket.socket(fileno=0)
    while True:
        data, fds, _, _ = socket.recv_fds(control, 65536, 8)
        if not data:
            os._exit(0)
        kind = struct.unpack("<I", data[:4])[0]
        if kind == STREAM:
            threading.Thread(target=serve, args=(socket.socket(fileno=fds[0]),), daemon=True).start()
        else:
            for fd in fds:
                os.close(fd)


main()
