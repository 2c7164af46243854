"""Runs inside a sandbox: tries what it should not be able to, and tells errnos.

    python3 - < jail_attacker.py      prints {"attempt": errno, ...}; 0: it worked
"""
import ctypes
import json
import os
import resource
import socket

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int,
                      ctypes.c_long]
found = {}

# x86-64.
CALLS = {
    "mount_setattr": (442, -1, b"", 0x1000, ctypes.create_string_buffer(32), 32),
    "move_mount": (429, -1, b"", -1, b"", 4),
    "open_tree": (428, -100, b"/", 1),
    "open_tree_recursive": (428, -100, b"/", 0x8001),
    "fsopen": (430, b"tmpfs", 0),
    "fspick": (433, -100, b"/", 0),
    "fsconfig": (431, -1, 6, None, None, 0),
    "fsmount": (432, -1, 0, 0),
    "pivot_root": (155, b".", b"."),
    "umount_root": (166, b"/", 2),
    "umount_proc_sys": (166, b"/proc/sys", 2),
    "swapon": (167, b"/work/none", 0),
    "quotactl": (179, 0x80000700, None, 0, None),
    "fanotify": (300, 0x200, 0),
    "memfd_secret": (447, 0),
    "open_by_handle_at": (304, -1, ctypes.create_string_buffer(64), 0),
    "iopl": (172, 3),
    "ioperm": (173, 0x80, 1, 1),
    "syslog": (103, 3, ctypes.create_string_buffer(64), 64),
    "personality_no_randomize": (135, 0x0040000),
    "personality_read_implies_exec": (135, 0x0400000),
    "setns_self_net": (308, "ns/net", 0),
    "setns_self_user": (308, "ns/user", 0),
    "sethostname": (170, b"mine", 4),
    "setdomainname": (171, b"mine", 4),
    "scheduler_fifo": (144, 0, 1, ctypes.byref(ctypes.c_int(1))),
    "nice": (141, 0, 0, -20),
    "ioprio_real_time": (251, 1, 0, 1 << 13),
    "affinity_of_the_agent": (203, 1, 8, ctypes.byref(ctypes.c_uint64(1))),
    "nice_of_the_agent": (141, 0, 1, 19),
    "move_pages_of_the_agent": (279, 1, 0, None, None, None, 0),
    "kcmp": (312, 1, os.getpid(), 0, 0, 0),
    "pidfd_getfd": (438, "pidfd", 0, 0),
    "process_vm_readv": (310, 1, None, 0, None, 0, 0),
    "ptrace_seize": (101, 0x4206, 1, 0, 0),
}


def call(number, *arguments):
    close = []
    real = []
    for argument in arguments:
        if argument == "pidfd":
            argument = libc.syscall(434, 1, 0)
            close.append(argument)
        elif isinstance(argument, str):
            argument = os.open("/proc/self/" + argument, os.O_RDONLY)
            close.append(argument)
        real.append(argument)
    result = libc.syscall(number, *real)
    error = ctypes.get_errno() if result < 0 else 0
    for fd in close:
        if fd >= 0:
            os.close(fd)
    return error


def attempt(name, function):
    try:
        function()
        found[name] = 0
    except OSError as error:
        found[name] = error.errno
    except ValueError:  # what Python makes of EPERM and EINVAL of setrlimit
        found[name] = 1


for name, (number, *arguments) in CALLS.items():
    found[name] = call(number, *arguments)

FAMILIES = {"vsock": 40, "alg": 38, "packet": 17, "bluetooth": 31, "tipc": 30, "xdp": 44, "kcm": 41,
            "rds": 21, "can": 29, "smc": 43, "qipcrtr": 42, "nfc": 39, "x25": 9, "ax25": 3,
            "appletalk": 5, "key": 15, "pppox": 24, "mctp": 45}
for name, family in FAMILIES.items():
    for kind in (1, 2, 3, 5):
        attempt(f"socket_{name}_{kind}", lambda: socket.socket(family, kind).close())
for kind in (1, 2):
    attempt(f"socket_raw_{kind}", lambda: socket.socket(kind * 2 if kind == 1 else 10, 3, 1).close())

for name in ["NOFILE", "CORE", "FSIZE", "CPU"]:
    which = getattr(resource, f"RLIMIT_{name}")
    soft, hard = resource.getrlimit(which)
    if hard != resource.RLIM_INFINITY:
        attempt(f"raise_{name}", lambda: resource.setrlimit(which, (soft, hard + 1)))
attempt("change_CORE", lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)))

# Huge pages are the machine's, from a pool that no limit of a sandbox counts.
for name, flags in {"huge_2m": 0x40022 | 21 << 26, "huge_1g": 0x40022 | 30 << 26}.items():
    address = libc.mmap(None, 2 << 20, 3, flags, -1, 0)
    found[name] = ctypes.get_errno() if address == ctypes.c_void_p(-1).value else 0
fd = libc.memfd_create(b"huge", 4)
found["huge_memfd"] = ctypes.get_errno() if fd < 0 else 0
address = libc.shmget(0, 2 << 20, 0o4000 | 0o1000 | 0o600)
found["huge_shm"] = ctypes.get_errno() if address < 0 else 0


def writable(top, skip=()):
    result = []
    for path, directories, files in os.walk(top):
        if path == top:
            directories[:] = [d for d in directories
                              if not d.isdigit() and d not in ("self", "thread-self")]
        for file in files:
            name = os.path.join(path, file)
            try:
                os.close(os.open(name, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW))
                if not os.path.samestat(os.stat(name), os.stat("/dev/null")):
                    result.append(name)
            except OSError:
                pass
    return result


found["writable"] = writable("/proc") + writable("/sys")
found["processes"] = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
found["cgroup"] = open("/proc/self/cgroup", encoding="ascii").read()
found["hostname"] = os.uname().nodename
print(json.dumps(found))
