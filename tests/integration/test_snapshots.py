"""Snapshots of what a sandbox has written, and sandboxes made from them."""
import json
import os
import shutil
import stat

import pytest

from snapshotting import (DESCRIBE, OTHER_UID, ROOT, delete, describe, nothing_in_the_store, refusal,
                          run_inside, store_of)
from support import Api, Refused, as_uid, v1, wait_until


@pytest.fixture
def runtime():
    """Of the shared instance: the one whose snapshots have a root."""
    return "jail"


both = pytest.mark.parametrize("runtime", ["jail", "runc"])

PLACES = ["/work", "/tmp", "/etc/things", "/opt", "/usr/local/things", "/usr/share/base-files"]


def test_everything_written_comes_back_as_it_was(service, keeper):
    write = r"""
import os, socket
os.umask(0)
# /etc of host-usr lies on a tmpfs, which shows no owners before 6.3.
bases = [base for base in ["/work", "/tmp", "/etc", "/usr/local"] if os.access(base, os.W_OK)]
print(len(bases))
for base in bases:
    top = os.path.join(base, "things")
    os.mkdir(top, 0o2751)
    with open(top + "/plain", "w") as file: file.write("content of " + base)
    os.chmod(top + "/plain", 0o4750)
    os.symlink("../../nowhere", top + "/link")
    os.symlink(b"/\xff\n", top + "/odd link")
    os.link(top + "/plain", top + "/second name")
    os.mkfifo(top + "/fifo", 0o620)
    os.mkdir(top + "/deep"); os.mkdir(top + "/deep/er", 0o500)
    odd = os.fsencode(top) + b"/new\nline \xff\xfe \x1b[31m"
    with open(odd, "wb") as file: file.write(b"\x00\xff" * 5000)
    fd = os.open(top + "/sparse", os.O_CREAT | os.O_RDWR)
    os.pwrite(fd, b"in the middle", 3 << 20)
    os.ftruncate(fd, 8 << 20)
    open(top + "/empty", "w").close()
    os.utime(top + "/plain", ns=(1, 1234567890123456789))
    os.utime(top + "/link", ns=(1, 2234567890123456789), follow_symlinks=False)
    os.utime(top + "/deep", ns=(1, 987654321))
    s = socket.socket(socket.AF_UNIX); s.bind(top + "/socket")
"""
    sandbox = keeper.acquire(*ROOT)
    bases = int(run_inside(service, sandbox, write))
    assert bases >= 3
    run_inside(service, sandbox, "open('/work/mine', 'w').write('of uid 1000')", user="1000")
    before = describe(service, sandbox, *PLACES)
    snap, info = keeper.snapshot(sandbox)
    assert info["kind"] == "filesystem" and info["image"] == "host-usr"
    assert info["skipped_sockets"] == bases and info["skipped_devices"] == 0
    assert info["bytes"] < 1 << 20, "holes take no room"
    # It went on as if nothing had been.
    assert describe(service, sandbox, *PLACES) == before

    restored = keeper.restore(snap)
    after = describe(service, restored, *PLACES)
    # But for the sockets, and the times of the directories that they were in.
    sockets = [path for path in before if bytes.fromhex(path).endswith(b"/socket")]
    for path in sockets:
        directory = os.path.dirname(bytes.fromhex(path)).hex()
        before[directory][4].remove(b"socket".hex())
        del before[path]
    assert after == before
    assert run_inside(service, restored, "print(open('/work/mine').read())") == b"of uid 1000\n"
    # As the old one was in all else.
    old, new = (service.cordon("inspect", "--json", s).json for s in [sandbox, restored])
    assert new["limits"] == old["limits"] and new["seccomp"] == old["seccomp"]


def test_removed_and_replaced_names_of_the_image(service, keeper):
    change = r"""
import os, shutil
shutil.rmtree("/usr/share/base-files"); os.mkdir("/usr/share/base-files")
open("/usr/share/base-files/only", "w").close()
shutil.rmtree("/usr/share/doc", ignore_errors=True)
os.unlink("/usr/bin/yes"); os.mkdir("/usr/bin/yes"); open("/usr/bin/yes/in it", "w").close()
shutil.rmtree("/usr/share/perl5", ignore_errors=True); open("/usr/share/perl5", "w").write("file")
os.chmod("/usr/games", 0o700)
os.rename("/usr/bin/env", "/usr/bin/moved")
with open("/usr/bin/wc", "ab") as file: file.write(b"appended")
"""
    look = r"""
import json, os
print(json.dumps([os.listdir("/usr/share/base-files"), os.path.exists("/usr/share/doc"),
    os.listdir("/usr/bin/yes"), open("/usr/share/perl5").read(), os.stat("/usr/games").st_mode & 0o777,
    os.path.exists("/usr/bin/env"), os.path.getsize("/usr/bin/moved") > 1000,
    open("/usr/bin/wc", "rb").read().endswith(b"\0appended"), os.path.exists("/usr/bin/python3"),
    os.path.exists("/etc/group")]))
"""
    expected = [["only"], False, ["in it"], "file", 0o700, False, True, True, True, True]
    sandbox = keeper.acquire("--writable-root", "64M")
    run_inside(service, sandbox, change)
    assert json.loads(run_inside(service, sandbox, look)) == expected
    snap, _ = keeper.snapshot(sandbox)
    restored = keeper.restore(snap)
    assert json.loads(run_inside(service, restored, look)) == expected
    # Of a restored sandbox a snapshot can be taken as of any.
    again, _ = keeper.snapshot(restored)
    assert json.loads(run_inside(service, keeper.restore(again), look)) == expected
    # And the image is what it was.
    done = service.cordon("run", *ROOT, "--", "/usr/bin/env", "echo", "here")
    assert done.out == b"here\n", done


def test_two_restores_are_independent_and_the_snapshot_stays(service, keeper):
    sandbox = keeper.acquire(*ROOT)
    write = "import sys\nfor p in ['/work/f', '/usr/local/f', '/tmp/f']: open(p, 'w').write(sys.argv[1])"
    read = "print([open(p).read() for p in ['/work/f', '/usr/local/f', '/tmp/f']])"
    run_inside(service, sandbox, write, "first")
    snap, _ = keeper.snapshot(sandbox)
    run_inside(service, sandbox, write, "later")
    one, two = keeper.restore(snap), keeper.restore(snap)
    run_inside(service, one, write, "changed")
    assert run_inside(service, two, read) == b"['first', 'first', 'first']\n"
    assert run_inside(service, sandbox, read) == b"['later', 'later', 'later']\n"
    service.release(one)
    done = service.cordon("run", "--snapshot", snap, "--user", "root", "--", "python3", "-c", read)
    assert done.out == b"['first', 'first', 'first']\n", done


@both
def test_with_a_read_only_root_work_and_tmp_are_kept(service, keeper, runtime):
    sandbox = keeper.acquire("--disk", "8M")
    run_inside(service, sandbox, "open('/work/a','w').write('w'); open('/tmp/b','w').write('t')")
    snap, info = keeper.snapshot(sandbox)
    restored = keeper.restore(snap)
    assert run_inside(service, restored, "print(open('/work/a').read()+open('/tmp/b').read())",
                      user="1000") == b"wt\n"
    again, _ = keeper.snapshot(restored)
    assert run_inside(service, keeper.restore(again), "print(open('/work/a').read())") == b"w\n"
    if runtime != "jail":
        return
    # The root may be made writable for the new one.
    wider = keeper.restore(snap, *ROOT)
    assert run_inside(service, wider, "open('/usr/local/x','w'); print(open('/work/a').read())") == b"w\n"


@both
def test_while_it_is_restored_and_after_the_limits_hold(service, keeper):
    sandbox = keeper.acquire("--memory", "64M", "--disk", "16M", "--pids", "2")
    # pids 2: python is one.
    run_inside(service, sandbox, "open('/work/a','wb').write(bytes(12 << 20))")
    snap, _ = keeper.snapshot(sandbox)
    restored = keeper.restore(snap)
    usage = run_inside(service, restored, """
import os
s = os.statvfs('/work'); print((s.f_blocks - s.f_bfree) * s.f_frsize >> 20, s.f_blocks * s.f_frsize >> 20)
try: open('/work/b','wb').write(bytes(8 << 20))
except OSError as error: print(error.errno)
""")
    assert usage == b"12 16\n28\n", usage
    # What was put back is charged to the workload, as what it writes itself.
    counters = {c["counter"]: c["value"]
                for c in service.cordon("inspect", "--json", restored).json["counters"]}
    used = [v for k, v in counters.items() if "usage_in_bytes" in k or "memory.current" in k]
    assert any(value >= 12 << 20 for value in used), counters


@both
def test_a_smaller_sandbox_is_refused_and_nothing_is_left(service, keeper):
    sandbox = keeper.acquire("--disk", "16M")
    run_inside(service, sandbox, "open('/work/a','wb').write(bytes(12 << 20))")
    snap, _ = keeper.snapshot(sandbox)
    error = refusal(service.cordon("acquire", "--json", "--snapshot", snap, "--disk", "4M"))
    assert (error["code"], error["reason"]) == ("INVALID_ARGUMENT", "SNAPSHOT_DOES_NOT_FIT")
    assert error["errno"] == 28


# ---------------------------------------------------------------- whose it is


@both
def test_it_is_its_owners_alone(service, keeper):
    sandbox = keeper.acquire()
    snap, info = keeper.snapshot(sandbox)
    name, token = snap.split(".")
    listed = service.cordon("snapshots", "--json").json["snapshots"]
    assert [s["name"] for s in listed] == [info["name"]] == [name]
    assert token not in json.dumps(listed)
    assert name in service.cordon("snapshots").out.decode()

    def tries(prefix, snap):
        for words in [["acquire", "--json", "--snapshot", snap],
                      ["run", "--json", "--snapshot", snap, "--", "true"],
                      ["snapshots", "--json", "--delete", snap]]:
            error = refusal(service.cordon(*words, prefix=prefix))
            assert (error["code"], error["reason"]) == ("NOT_FOUND", "NO_SUCH_SNAPSHOT"), error

    # Another uid that has the whole id, and the owner with a wrong token.
    tries(as_uid(OTHER_UID), snap)
    wrong = f"{name}.{'0' * 32}"
    tries([], wrong)
    other = service.cordon("snapshots", "--json", prefix=as_uid(OTHER_UID))
    assert other.json["snapshots"] == []
    # Nor can another uid take one of this sandbox.
    error = refusal(service.cordon("snapshot", "--json", sandbox, prefix=as_uid(OTHER_UID)))
    assert error["reason"] == "NO_SUCH_SANDBOX"
    # The sandbox's id is no snapshot's.
    error = refusal(service.cordon("acquire", "--json", "--snapshot", sandbox))
    assert error["reason"] == "BAD_ID"
    delete(service, snap)
    tries([], snap)
    assert service.cordon("snapshots", "--json").json["snapshots"] == []
    wait_until(lambda: os.listdir(store_of(service)) == [], "its files are gone")


def test_the_store_is_roots_alone(service, keeper):
    snap, _ = keeper.snapshot(keeper.acquire())
    name = snap.split(".")[0]
    for path, mode in [(store_of(service), 0o700), (store_of(service) / name, 0o700),
                       (store_of(service) / name / "data", 0o600),
                       (store_of(service) / name / "meta", 0o600)]:
        status = os.lstat(path)
        assert status.st_uid == 0 and stat.S_IMODE(status.st_mode) == mode, path
    # Nor is the token in it.
    assert snap.split(".")[1].encode() not in (store_of(service) / name / "meta").read_bytes()


def test_host_has_none(shared_host):
    sandbox = shared_host.acquire("host")
    error = refusal(shared_host.cordon("snapshot", "--json", sandbox))
    assert (error["code"], error["reason"]) == ("INVALID_ARGUMENT", "UNSUPPORTED"), error
    shared_host.release(sandbox)


def test_another_runtime_or_image_is_refused(service, keeper, image):
    image("for-snapshots")
    snap, _ = keeper.snapshot(keeper.acquire())
    for flags, subject in [(["--runtime", "runc"], "runtime"),
                           (["--image", "for-snapshots"], "image")]:
        error = refusal(service.cordon("acquire", "--json", "--snapshot", snap, *flags))
        assert (error["reason"], error["subject"]) == ("SNAPSHOT_MISMATCH", subject), error


def test_an_image_that_was_replaced_is_refused(service, keeper, image):
    root = image("replaced")
    sandbox = keeper.acquire("--image", "replaced", *ROOT)
    snap, _ = keeper.snapshot(sandbox)
    keeper.restore(snap)
    root.rename(root.with_name("aside"))
    try:
        shutil.copytree(root.with_name("aside"), root)
        error = refusal(service.cordon("acquire", "--json", "--snapshot", snap))
        assert (error["reason"], error["subject"]) == ("SNAPSHOT_MISMATCH", "image"), error
    finally:
        shutil.rmtree(root)
        root.with_name("aside").rename(root)


# ---------------------------------------------------------------- what a hostile program makes


@both
def test_what_a_program_makes_to_confuse(service, keeper):
    """Names, kinds of files and attributes that a copier could stumble over."""
    write = r"""
import os, socket
os.umask(0)
os.chdir("/work")
os.mkdir(b"n" * 255); open(b"n" * 255 + b"/" + b"\xff" * 255, "w").close()
for odd in [b"\x01", b"\n", b" ", b"-rf", b"...", b"\xc3\x28", b"a" * 254 + b"\xfe", b"CORDSNAP"]:
    open(odd, "wb").write(odd)
os.mkdir("sticky", 0o1777); os.mkdir("setgid", 0o2777); os.mkdir("closed", 0)
open("closed-file", "w").write("x"); os.chmod("closed-file", 0)
open("setuid", "w").write("#!"); os.chmod("setuid", 0o6755)
os.mkdir("links")
open("links/one", "w").write("of many")
for i in range(200): os.link("links/one", f"links/{i:03}")
os.link("links/one", "elsewhere")
os.symlink("links", "to-links"); os.symlink("/etc/shadow", "out"); os.symlink("loop", "loop")
os.symlink("../../../../../../..", "up"); os.symlink("x" * 4000, "long")
os.mkfifo("fifo", 0)
top = os.open(".", os.O_RDONLY)
for _ in range(120): os.mkdir("d"); os.chdir("d")
open("deepest", "w").write("here")
os.chdir(top)
fd = os.open("terabyte", os.O_CREAT | os.O_RDWR, 0o600)
os.ftruncate(fd, (1 << 40) - (1 << 30)); os.pwrite(fd, b"end", (1 << 40) - (1 << 30) - 3)
os.utime("setuid", ns=(0, -1_500_000_001)); os.utime("fifo", ns=(0, (1 << 33) * 10**9))
"""
    sandbox = keeper.acquire("--disk", "64M", "--file-size", "2048G")
    run_inside(service, sandbox, write)
    walk = "import os; os.chdir('/work'); [os.chdir('d') for _ in range(120)]; " \
           "print(open('deepest').read())"
    # The terabyte is not read here but where it is.
    look = r"""
import json, os
fd = os.open("/work/terabyte", os.O_RDONLY)
s = os.fstat(fd)
print(json.dumps([s.st_size, s.st_blocks < 64, os.pread(fd, 9, s.st_size - 3).decode(),
                  os.lseek(fd, 0, os.SEEK_DATA) > 1 << 39]))
"""
    size = (1 << 40) - (1 << 30)
    snap, info = keeper.snapshot(sandbox)
    assert info["bytes"] < 1 << 20
    restored = keeper.restore(snap)
    for each in [sandbox, restored]:
        assert json.loads(run_inside(service, each, look)) == [size, True, "end", True]
        assert run_inside(service, each, walk) == b"here\n"
        run_inside(service, each, "import os; os.unlink('/work/terabyte')")
    # Under their own ids: 0 has no capability inside, so a closed directory is read by nobody.
    for owner in ["root", "1000"]:
        before, after = (json.loads(run_inside(service, each, DESCRIBE, "/work", user=owner))
                         for each in [sandbox, restored])
        # The unlink is later than the snapshot.
        assert before.pop(b"/work".hex())[4] == after.pop(b"/work".hex())[4]
        assert after == before


@both
def test_devices_and_attributes_that_are_left_behind_are_counted(service, keeper):
    sandbox = keeper.acquire()
    made = json.loads(run_inside(service, sandbox, r"""
import ctypes, json, os, socket
libc = ctypes.CDLL(None, use_errno=True)
S_IFCHR = 0o020000
# What overlayfs takes for a removed name: no device, so that anybody may make one.
whiteout = libc.mknod(b"/work/whiteout", S_IFCHR | 0o600, ctypes.c_ulong(0)) == 0
device = libc.mknod(b"/work/null", S_IFCHR | 0o600, ctypes.c_ulong(0x103)) == 0
open("/work/marked", "w").close()
try: os.setxattr("/work/marked", "user.note", b"x" * 100); marked = True
except OSError: marked = False
s = socket.socket(socket.AF_UNIX); s.bind("/tmp/socket")
print(json.dumps([whiteout, device, marked]))
"""))
    whiteout, device, marked = made
    assert not device
    snap, info = keeper.snapshot(sandbox)
    assert info["skipped_sockets"] == 1
    assert info["skipped_devices"] == whiteout
    assert info["without_xattrs"] == marked
    restored = keeper.restore(snap)
    assert run_inside(service, restored, "import os; print(os.listdir('/work'))") == b"['marked']\n"


def test_marks_that_a_program_makes_in_the_root(service, keeper):
    """It can make no mark of overlayfs's, and what looks like one is a file as others."""
    sandbox = keeper.acquire(*ROOT)
    found = json.loads(run_inside(service, sandbox, r"""
import ctypes, json, os, shutil
libc = ctypes.CDLL(None, use_errno=True)
tried = [libc.mknod(b"/usr/bin/whiteout", 0o020600, ctypes.c_ulong(0))]
os.mkdir("/usr/local/d")
for name in ["trusted.overlay.opaque", "trusted.overlay.redirect", "user.overlay.opaque",
             "trusted.overlay.whiteout"]:
    try: os.setxattr("/usr/local/d", name, b"y"); tried.append(name)
    except OSError: pass
for place in ["/usr/bin", "/usr/local"]:
    for name in [".wh.env", ".wh..wh..opq", "u0", "w0"]: open(f"{place}/{name}", "w").write(name)
# A directory of the image gives way to a link to another, and a file to a fifo.
shutil.rmtree("/usr/share/base-files"); os.symlink("/usr/bin", "/usr/share/base-files")
os.unlink("/usr/bin/yes"); os.mkfifo("/usr/bin/yes")
# One and the same file under a name of the image and one of its own.
with open("/usr/bin/tac", "ab") as file: file.write(b"more")
os.link("/usr/bin/tac", "/usr/bin/tac-too")
print(json.dumps(tried))
"""))
    assert [t for t in found if t not in (-1, "user.overlay.opaque")] == [], found
    look = r"""
import json, os, stat
with open("/usr/bin/tac-too", "ab") as file: file.write(b"and more")
print(json.dumps([sorted(n for n in os.listdir("/usr/bin") if n.startswith((".wh", "u0", "w0"))),
    sorted(n for n in os.listdir("/usr/local") if n.startswith((".wh", "u0", "w0"))),
    os.readlink("/usr/share/base-files"), stat.S_ISFIFO(os.lstat("/usr/bin/yes").st_mode),
    open("/usr/bin/tac", "rb").read()[-8:].decode(), os.path.exists("/usr/bin/env")]))
"""
    names = sorted([".wh.env", ".wh..wh..opq", "u0", "w0"])
    expected = [names, names, "/usr/bin", True, "and more", True]
    assert json.loads(run_inside(service, sandbox, look)) == expected
    snap, info = keeper.snapshot(sandbox)
    restored = keeper.restore(snap)
    assert json.loads(run_inside(service, restored, look)) == expected


@both
def test_a_hundred_thousand_files(service, keeper):
    sandbox = keeper.acquire("--disk", "512M", "--memory", "1G", "--wall", "5m", "--cpu-time", "5m")
    run_inside(service, sandbox, r"""
import os
for d in range(100):
    os.mkdir(f"/work/{d}"); at = os.open(f"/work/{d}", os.O_RDONLY)
    for i in range(1000): os.close(os.open(str(i), os.O_CREAT | os.O_WRONLY, dir_fd=at))
    os.close(at)
""")
    snap, info = keeper.snapshot(sandbox)
    assert info["entries"] > 100_000
    restored = keeper.restore(snap)
    assert run_inside(service, restored, r"""
import os
print(sum(len(files) for _, _, files in os.walk('/work')))
""") == b"100000\n"


# ---------------------------------------------------------------- too much


def test_what_is_too_much_is_named_and_leaves_nothing(service, keeper):
    sandbox = keeper.acquire("--disk", "32M", "--file-size", "1024G")

    def refused(subject):
        error = refusal(service.cordon("snapshot", "--json", sandbox))
        assert (error["code"], error["reason"]) == ("RESOURCE_EXHAUSTED", "SNAPSHOT_TOO_LARGE")
        assert error["subject"] == subject and error["limit"] > 0, error
        nothing_in_the_store(service)
        # And it is not frozen.
        assert run_inside(service, sandbox, "print(1)") == b"1\n"

    run_inside(service, sandbox, """
import os
os.chdir('/work')
for _ in range(1000): os.mkdir('d'); os.chdir('d')
""")
    refused("depth")
    run_inside(service, sandbox, "import os; os.system('rm -r /work/d')")
    run_inside(service, sandbox, """
import os
for i in range(3):
    fd = os.open(f'/work/{i}', os.O_CREAT | os.O_RDWR); os.ftruncate(fd, 1 << 39)
""")
    refused("logicalBytes")


@both
def test_as_many_files_as_there_are_inodes(service, keeper):
    sandbox = keeper.acquire("--disk", "64M", "--wall", "60s")
    count = int(run_inside(service, sandbox, """
import os
n = 0
try:
    for d in range(100):
        os.mkdir(f'/work/{d}')
        for i in range(1000): os.close(os.open(f'/work/{d}/{i}', os.O_CREAT)); n += 1
except OSError: pass
print(n)
"""))
    assert count > 10_000
    snap, info = keeper.snapshot(sandbox)
    assert info["entries"] > count
    restored = keeper.restore(snap)
    assert int(run_inside(service, restored, """
import os
print(sum(len(files) for _, _, files in os.walk('/work')))
""")) == count


def test_a_program_that_writes_all_the_time(service, keeper):
    """What is taken is one moment: of two files written in turn both are there."""
    sandbox = keeper.acquire(*ROOT, "--wall", "10m", "--cpu-time", "10m")
    program = """
import os, time
n = 0
os.mkdir('/usr/local/many')
while True:
    n += 1
    for place in ['/work', '/usr/local']:
        with open(f'{place}/new', 'w') as file: file.write(str(n) * 1000)
        os.rename(f'{place}/new', f'{place}/now')
    try: os.symlink('/etc/passwd', f'/work/turn')
    except FileExistsError: os.unlink('/work/turn'); os.mkdir('/work/turn'); os.rmdir('/work/turn')
    open(f'/usr/local/many/{n % 50}', 'w').close()
    if n % 3 == 0: os.unlink(f'/usr/local/many/{n % 50}')
    if n == 1: print('going', flush=True)
"""
    writer = service.popen("exec", "--user", "root", sandbox, "--", "python3", "-c", program)
    try:
        assert writer.stdout.readline() == b"going\n"
        for _ in range(3):
            snap, _ = keeper.snapshot(sandbox)
            restored = keeper.restore(snap)
            work, local = json.loads(run_inside(service, restored, """
import json
print(json.dumps([int(open(p + '/now').read()[:len(open(p + '/now').read()) // 1000])
                  for p in ['/work', '/usr/local']]))
"""))
            assert work - local in (0, 1), (work, local)
            service.release(restored)
        assert writer.poll() is None, "it goes on"
    finally:
        writer.kill()
        writer.communicate()


def test_the_api_itself(service):
    with Api(service.address) as api:
        made = api.acquire("jail")
        taken = api.call("Snapshot", v1.SnapshotRequest(id=made.id))
        assert taken.id.startswith(taken.snapshot.name + ".")
        assert taken.snapshot.kind == "filesystem"
        listed = api.call("ListSnapshots", v1.ListSnapshotsRequest()).snapshots
        assert [s.name for s in listed] == [taken.snapshot.name]
        ended = api.run(["true"], sandbox=v1.SandboxSpec(snapshot=taken.id))
        assert ended.result.exit_code == 0 and ended.result.receipt.complete
        api.call("DeleteSnapshot", v1.DeleteSnapshotRequest(id=taken.id))
        for method, request in [("Snapshot", v1.SnapshotRequest(id="nonsense")),
                                ("DeleteSnapshot", v1.DeleteSnapshotRequest(id=made.id))]:
            with pytest.raises(Refused) as refused:
                api.call(method, request)
            assert refused.value.reason == "BAD_ID"
        with pytest.raises(Refused) as refused:
            api.call("DeleteSnapshot", v1.DeleteSnapshotRequest(id=taken.id))
        assert refused.value.reason == "NO_SUCH_SNAPSHOT"
        api.release(made.id)
