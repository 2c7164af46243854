"""Hostile programs in a jail that the escape suite has not; and a hostile agent.

What the suite has (mounts, namespaces, the agent's memory, descriptors, ...) runs
on jail by test_escape.py.
"""
import contextlib
import errno
import json
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import tempfile

import pytest

import support
from support import wait_until
from test_hostile_guest import encoded_messages

HERE = pathlib.Path(__file__).parent
ATTACKER = (HERE / "jail_attacker.py").read_bytes()
REFUSED = {errno.EPERM, errno.EACCES, errno.ENOSYS}
# Harmless: without an argument that makes sense, or of one's own.
ALLOWED = {"process_vm_readv": {errno.EINVAL}, "memfd_secret": {0, errno.ENOSYS}}


@pytest.fixture(scope="module")
def instance():
    with support.Instance() as it:
        yield it


def host_settings():
    names = ["kernel/hostname", "kernel/domainname", "kernel/core_pattern", "kernel/modprobe",
             "vm/nr_hugepages", "user/max_user_namespaces"]
    return {name: support.read_text(f"/proc/sys/{name}") for name in names}


@pytest.mark.parametrize("user", ["user", "root"])
@pytest.mark.parametrize("runtime", ["jail", "runc"])
def test_what_a_program_tries(instance, runtime, user):
    before = host_settings()
    done = instance.cordon("run", "--runtime", runtime, "--user", user, "--", "python3", "-",
                           stdin=ATTACKER)
    assert done.status == 0, done
    found = json.loads(done.out)
    assert host_settings() == before
    assert found.pop("writable") == []
    # hidepid: none of another uid.
    seen = found.pop("processes")
    assert len(seen) <= (1 if runtime == "jail" else 2), seen
    cgroup = found.pop("cgroup")
    assert instance.name not in cgroup and "cordon" not in cgroup and "sb-" not in cgroup, cgroup
    assert found.pop("hostname").startswith("sb-")
    through = {name: error for name, error in found.items()
               if error not in ALLOWED.get(name, REFUSED)}
    assert through == {}
    assert len(found) > 100


# ---------------------------------------------------------------- between sandboxes

MARK = """
import ctypes, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
key, name, act = 0x436f7264, b"/cordon-mark", sys.argv[1]
make = 0o1000 if act == "make" else 0
result = {
    "shm": libc.shmget(key, 4096, make | 0o666),
    "msg": libc.msgget(key, make | 0o666),
    "sem": libc.semget(key, 1, make | 0o666),
    "mq": libc.mq_open(name, 2 | (0o100 if make else 0), 0o666, None),
}
listener = socket.socket(socket.AF_UNIX)
if act == "make":
    listener.bind("\\0cordon-mark"); listener.listen()
    open("/dev/shm/mark", "w"); open("/tmp/mark", "w"); open("/work/mark", "w")
    result["abstract"] = 0
else:
    result["abstract"] = listener.connect_ex("\\0cordon-mark") and -1
    for place in ["/dev/shm", "/tmp", "/work"]:
        result[place] = 0 if os.path.exists(place + "/mark") else -1
print({k: v >= 0 for k, v in result.items()}, flush=True)
if act == "make":
    sys.stdin.read()
"""


def test_nothing_is_shared_between_sandboxes(instance):
    maker = instance.popen("run", "-i", "--", "python3", "-c", MARK, "make", stdin=subprocess.PIPE)
    try:
        assert b"False" not in maker.stdout.readline()
        for runtime in ["jail", "runc"]:
            seeker = instance.cordon("run", "--runtime", runtime, "--", "python3", "-c", MARK, "seek")
            assert seeker.status == 0 and b"True" not in seeker.out, seeker
        assert b"True" not in subprocess.run(
            ["/usr/bin/python3", "-c", MARK, "seek"], capture_output=True, check=True,
            timeout=30).stdout, "nor with the host"
    finally:
        maker.communicate(timeout=60)


# ---------------------------------------------------------------- processes that stay

STAY = {
    "stopped": "import os,signal; os.fork(); os.fork(); os.kill(os.getpid(), signal.SIGSTOP)",
    # The parent waits in the kernel until its child lets go of its memory.
    "vfork": """
import ctypes
libc = ctypes.CDLL(None)
for _ in range(3):
    if libc.syscall(56, 0x4111, 0, 0, 0, 0) == 0:  # clone(CLONE_VM|CLONE_VFORK|SIGCHLD)
        while True: libc.pause()
""",
    "traced": """
import ctypes, os, signal, time
libc = ctypes.CDLL(None)
child = os.fork()
if child == 0:
    libc.ptrace(0, 0, 0, 0)
    os.kill(os.getpid(), signal.SIGSTOP)
    while True: pass
time.sleep(300)
""",
    "deaf": """
import os, signal, time
for n in range(1, 65):
    try: signal.signal(n, signal.SIG_IGN)
    except (OSError, ValueError): pass
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
while True:
    if os.fork() == 0: os.setsid()
    time.sleep(0.01)
""",
    "lock": """
import fcntl, os, time
f = open("/work/lock", "w")
fcntl.flock(f, fcntl.LOCK_EX)
if os.fork() == 0:
    fcntl.flock(open("/work/lock", "w"), fcntl.LOCK_EX)
time.sleep(300)
""",
}


@pytest.mark.parametrize("how", STAY)
def test_what_stays_is_ended(instance, how):
    with support.Api(instance.address) as api:
        acquired = api.acquire(limits=dict(pids=32))
        marker = f"cordon-stays-{how}-{os.getpid()}"
        call = api.begin_exec(acquired.id, ["python3", "-c", STAY[how], marker])
        wait_until(lambda: support.processes_with(marker), "it is there")
        receipt = api.release(acquired.id).receipt
        assert receipt.complete and not receipt.left, receipt
        assert not support.processes_with(marker)
        call.cancel()
    assert not instance.traces()


FREEZER = pathlib.Path("/sys/fs/cgroup/freezer")


@contextlib.contextmanager
def frozen(pid):
    """A process in a frozen cgroup of the test's own: no signal ends it. Yields a
    function that lets it go on."""
    group = FREEZER / f"cordon-test-{os.getpid()}"
    group.mkdir()
    state = group / "freezer.state"
    try:
        (group / "cgroup.procs").write_text(str(pid))
        state.write_text("FROZEN")
        wait_until(lambda: state.read_text() == "FROZEN\n", "it is frozen")
        yield lambda: state.write_text("THAWED")
    finally:
        state.write_text("THAWED")
        for each in (group / "cgroup.procs").read_text().split():
            (FREEZER / "cgroup.procs").write_text(each)
        group.rmdir()


@pytest.mark.skipif(not FREEZER.exists(), reason="needs a v1 freezer, which a jail's processes are not in")
def test_what_can_not_be_ended_is_named_and_tried_again(instance):
    with support.Api(instance.address) as api:
        acquired = api.acquire()
        marker = f"cordon-frozen-{os.getpid()}"
        call = api.begin_exec(acquired.id, ["python3", "-c", "import time; time.sleep(300)", marker])
        pid = wait_until(lambda: [p for p in support.processes_with(marker)
                                  if support.program_of(p).startswith("python")], "it is there")[0]
        with frozen(pid) as thaw:
            receipt = api.release(acquired.id).receipt
            assert not receipt.complete
            kinds = {item.kind for item in receipt.left}
            assert "process" in kinds, receipt
            # What holds it back is still claimed: no other sandbox gets these ids.
            traces = instance.traces()
            assert any("id claim" in t for t in traces) and any("record" in t for t in traces), traces
            thaw()
            wait_until(lambda: not instance.traces(), "it is tried again until nothing is left")
        call.cancel()
    assert instance.cordon("run", "--", "true").status == 0


# ---------------------------------------------------------------- a hostile agent

# Takes what it is sent, and when an exec begins tells in /work/report what it
# holds and how far that leads; then it answers as if the program had ended.
HUNTER = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
static const unsigned char hello[] = {%s}, end[] = {%s};
static FILE* out;
static void tried(const char* what, long result) {
  fprintf(out, "try %%s %%d\n", what, result < 0 ? errno : 0);
}
static void climb(int fd) {
  static const char* const up[] = {"..", "../..", "../../..", "../../../../../../..", ".", "/.."};
  struct stat root, there;
  stat("/", &root);
  for (unsigned i = 0; i < 6; ++i) {
    int found = openat(fd, up[i], O_RDONLY | O_DIRECTORY);
    if (found < 0) continue;
    fstat(found, &there);
    if (i < 5 && !(there.st_dev == root.st_dev && there.st_ino == root.st_ino))
      fprintf(out, "climbed %%d %%s\n", fd, up[i]);
    close(found);
  }
  char path[64];
  static const char* const by[] = {"/proc/self/fd/%%d/..", "/proc/self/fd/%%d/../../..",
                                   "/proc/1/fd/%%d/../..", "/dev/fd/%%d/.."};
  for (unsigned i = 0; i < 4; ++i) {
    snprintf(path, sizeof path, by[i], fd);
    int found = open(path, O_RDONLY | O_DIRECTORY);
    if (found >= 0) { fprintf(out, "climbed %%s\n", path); close(found); }
  }
  if (fchdir(fd) == 0) { fprintf(out, "fchdir %%d\n", fd); chdir("/"); }
  if (syscall(428, fd, "", 1 | 0x1000) >= 0) fprintf(out, "open_tree %%d\n", fd);
}
static void hunt(void) {
  out = fopen("/work/report", "w");
  if (!out) return;
  for (int fd = 0; fd < 65536; ++fd) {
    struct stat s;
    if (fd == fileno(out) || fcntl(fd, F_GETFD) < 0 || fstat(fd, &s)) continue;
    int mode = fcntl(fd, F_GETFL) & (O_ACCMODE | O_PATH);
    fprintf(out, "fd %%d %%o %%d %%ld\n", fd, s.st_mode & S_IFMT, mode, (long)s.st_rdev);
    climb(fd);
    if (S_ISREG(s.st_mode) && mode == O_WRONLY) {  /* a leaf's tasks */
      tried("tasks_host_init", write(fd, "-1", 2));
      tried("tasks_garbage", write(fd, "no number", 9));
      tried("tasks_fchmod", fchmod(fd, 0777));
      tried("tasks_fchown", fchown(fd, 65000, 65000));
      tried("tasks_truncate", ftruncate(fd, 0) ? -1 : (errno = 0, -1));
    }
    if (S_ISREG(s.st_mode) && mode == O_RDWR) {  /* the profile, sealed */
      tried("memfd_write", pwrite(fd, "x", 1, 0));
      tried("memfd_grow", ftruncate(fd, s.st_size + 1));
      tried("memfd_seal", fcntl(fd, F_ADD_SEALS, 1));
    }
    if (S_ISSOCK(s.st_mode)) {
      struct ucred peer; socklen_t size = sizeof peer;
      if (!getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size)) fprintf(out, "peer %%d %%u\n", peer.pid, peer.uid);
    }
  }
  tried("control_send", send(0, "x", 1, MSG_DONTWAIT | MSG_NOSIGNAL) > 0 ? (errno = 0, -1) : -1);
  tried("mount_tmpfs", mount("x", "/work", "tmpfs", 0, 0));
  tried("mount_cgroup", mount("x", "/work", "cgroup", 0, "pids"));
  tried("mount_cgroup2", mount("x", "/work", "cgroup2", 0, 0));
  tried("remount", mount(0, "/", 0, MS_REMOUNT | MS_BIND, 0));
  tried("remount_proc_sys", mount(0, "/proc/sys", 0, MS_REMOUNT | MS_BIND, 0));
  tried("umount", umount2("/proc/sys", MNT_DETACH));
  tried("own_exe", open("/proc/self/exe", O_RDONLY));
  tried("own_exe_write", open("/proc/self/exe", O_WRONLY));
  tried("own_mem", open("/proc/self/mem", O_RDWR));
  tried("image_agent", open("/.cordon/vm-agent", O_WRONLY));
  tried("hostname", sethostname("x", 1));
  tried("core_pattern", open("/proc/sys/kernel/core_pattern", O_WRONLY));
  tried("userns", open("/proc/sys/user/max_user_namespaces", O_WRONLY));
  tried("new_userns", syscall(SYS_unshare, 0x10000000));
  tried("new_mountns", syscall(SYS_unshare, 0x20000));
  tried("clone_userns", syscall(SYS_clone, 0x10000000 | SIGCHLD, 0, 0, 0, 0));
  tried("bpf", syscall(SYS_bpf, 0, 0, 0));
  tried("vsock", socket(40, SOCK_STREAM, 0));
  tried("raw", socket(AF_INET, SOCK_RAW, 1));
  tried("uid_of_the_host", setresuid(70000, 70000, 70000));
  tried("mknod", mknod("/work/kmsg", S_IFCHR | 0666, (1 << 8) | 11));
  FILE* self = fopen("/proc/self/cgroup", "r");
  char line[512];
  while (self && fgets(line, sizeof line, self)) fprintf(out, "cgroup %%s", line);
  fprintf(out, "done\n");
  fclose(out);
}
/* The kind of the next datagram (ipc/control.h), and its first descriptor; all stay open. */
static int take(int flags, int* fd) {
  char data[65536];
  union { char room[CMSG_SPACE(16 * sizeof(int))]; struct cmsghdr align; } extra;
  struct iovec part = {data, sizeof data};
  struct msghdr message = {0, 0, &part, 1, extra.room, sizeof extra.room, 0};
  if (recvmsg(0, &message, flags) <= 0) return -1;
  struct cmsghdr* first = CMSG_FIRSTHDR(&message);
  *fd = first ? *(int*)CMSG_DATA(first) : -1;
  return data[0];
}
int main(void) {
  for (int kind, stream, other; (kind = take(0, &stream)) >= 0;) {
    char byte;
    if (kind != 2 || stream < 0) continue;
    struct pollfd ready = {stream, POLLIN, 0};
    send(stream, hello, sizeof hello, MSG_NOSIGNAL);
    if (poll(&ready, 1, -1) < 0 || recv(stream, &byte, 1, 0) != 1) continue;
    while (take(MSG_DONTWAIT, &other) >= 0) {}  /* the exec's leaf */
    hunt();
    send(stream, end, sizeof end, MSG_NOSIGNAL);
  }
  return 0;
}
"""


@pytest.fixture(scope="module")
def hunted():
    """The report of an agent that hunts."""
    directory = pathlib.Path(tempfile.mkdtemp(prefix="cordon-hunter-"))
    try:
        frames = [struct.pack("<II", len(encoded_messages()[m]), 0x31445243) + encoded_messages()[m]
                  for m in ("hello", "exited")]
        source = HUNTER % tuple(",".join(map(str, f)) for f in frames)
        subprocess.run(["cc", "-static", "-O1", "-w", "-x", "c", "-", "-o", directory / "agent"],
                       input=source.encode(), check=True, timeout=60)
        with support.Instance("--vm-agent", directory / "agent") as instance:
            with support.Api(instance.address) as api:
                acquired = api.acquire()
                api.exec(acquired.id, ["anything"])
                agent = [p for p in support.sandbox_init(instance)]
                assert len(agent) == 1, agent
                text = support.read_text(f"/proc/{agent[0]}/root/work/report")
                api.release(acquired.id)
        assert text.endswith("done\n"), text
        yield text
    finally:
        shutil.rmtree(directory)


def test_no_descriptor_of_an_agent_leads_out(hunted):
    lines = hunted.splitlines()
    assert [line for line in lines if line.split()[0] in ("climbed", "fchdir", "open_tree")] == []
    kinds = {}
    for line in lines:
        if line.startswith("fd "):
            _, number, kind, mode, device = line.split()
            kinds.setdefault((int(kind, 8), int(mode)), []).append((int(number), int(device)))
    directories = kinds.pop((0o040000, os.O_RDONLY), [])
    assert not directories
    # The control socket and streams, the sealed profile, /dev/null, and of a leaf
    # its list of processes to read and its `tasks` to write.
    assert set(kinds) <= {(0o140000, os.O_RDWR), (0o100000, os.O_RDWR), (0o020000, os.O_RDWR),
                          (0o100000, os.O_RDONLY), (0o100000, os.O_WRONLY),
                          (0o040000, os.O_PATH)}, kinds
    null = os.makedev(1, 3)
    assert {device for _, device in kinds[(0o020000, os.O_RDWR)]} == {null}
    assert len(kinds[(0o100000, os.O_RDWR)]) == 1, "the profile's memfd"
    assert (0o100000, os.O_WRONLY) in kinds or (0o040000, os.O_PATH) in kinds, "the leaf"


def test_an_agent_that_is_taken_over_gains_nothing(hunted):
    through = {}
    for line in hunted.splitlines():
        if line.startswith("try "):
            _, name, error = line.split()
            if int(error) == 0:
                through[name] = through.get(name, 0) + 1
    # Its own image may not be read, and a truncated cgroup file is as it was.
    through.pop("tasks_truncate", None)
    through.pop("control_send", None)
    assert through == {}, hunted
    cgroups = [line for line in hunted.splitlines() if line.startswith("cgroup ")]
    assert cgroups and not [c for c in cgroups if "cordon" in c or "sb-" in c], cgroups


def test_the_hosts_device_nodes_keep_their_times(shared_jail):
    """They are the host's own inodes, written to all the same."""
    before = {name: os.stat(f"/dev/{name}").st_mtime_ns for name in ("null", "zero", "full", "tty")}
    for flags in ([], ["--writable-root", "8M"]):
        done = shared_jail.cordon("run", *flags, "--user", "root", "--", "sh", "-c",
                                  "for d in null zero full tty; do touch -d 2001-02-03 /dev/$d; "
                                  "chmod 600 /dev/$d; done 2> /dev/null; "
                                  "echo x > /dev/null && echo y >> /dev/null && echo written")
        assert done.out == b"written\n", done
    assert {name: os.stat(f"/dev/{name}").st_mtime_ns for name in before} == before
