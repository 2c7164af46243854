"""What waits in sockets is memory of the sandbox, too."""
import pytest

MEMORY = 64 << 20

FILL = """
import socket, sys, time
family, kind, held, keep = socket.AF_INET, sys.argv[1], 0, []
def fill(s, chunk):
    count = 0
    try:
        while True: count += s.send(chunk)
    except (BlockingIOError, OSError): return count
def tcp(server):
    a = socket.create_connection(server.getsockname()); b, _ = server.accept()
    return a, b
def udp(_):
    b = socket.socket(family, socket.SOCK_DGRAM); b.bind(('127.0.0.1', 0))
    a = socket.socket(family, socket.SOCK_DGRAM); a.connect(b.getsockname())
    return a, b
def unix(_): return socket.socketpair()
server = socket.create_server(('127.0.0.1', 0))
for number in range(300):
    a, b = {'tcp': tcp, 'udp': udp, 'unix': unix}[kind](server)
    for s in (a, b):
        s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        s.setblocking(False)
    keep += [a, b]
    if kind == 'udp':
        # A datagram that finds no room is dropped without a word.
        for _ in range(64): a.send(bytes(32768))
    else:
        fill(a, bytes(65536))
if kind == 'udp':
    for b in keep[1::2]:
        try:
            while True: held += len(b.recv(65536))
        except BlockingIOError: pass
else:
    for b in keep[1::2]:
        try:
            while True:
                got = b.recv(1 << 20)
                if not got: break
                held += len(got)
        except BlockingIOError: pass
print(held)
"""


@pytest.mark.parametrize("kind", ["tcp", "udp", "unix"])
def test_sockets_hold_no_more_than_the_sandbox_may(service, kind):
    """Either a limit keeps them small, or the program is killed for its memory."""
    ended = service.cordon("run", "--json", "--memory", MEMORY, "--disk", "4M", "--files", "1024",
                           "--wall", "60s", "--", "python3", "-c", FILL, kind, timeout=120).json
    if ended.get("exit_code") == 0:
        held = int(ended["stdout"]["text"])
        assert 0 < held < 2 * MEMORY, held
    else:
        assert ended["verdict"]["control"] == "memory", ended
