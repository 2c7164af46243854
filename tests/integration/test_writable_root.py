"""A root that can be written to, and is thrown away with its sandbox; whose the
files of an image are inside."""
import json
import os
import pathlib
import subprocess

import pytest

from support import Instance, Refused, wait_until

WRITABLE = {"memory_bytes": 256 << 20, "root_bytes": 16 << 20}


@pytest.fixture
def runtime():
    """Of the shared instance: the one that has a writable root."""
    return "jail"


def python(service, program, *flags, user="root"):
    done = service.cordon("run", "--writable-root", "16M", "--user", user, *flags, "--",
                          "python3", "-c", program)
    assert done.status == 0, done
    return json.loads(done.out)


def test_what_is_written_is_seen_in_its_sandbox_alone(service):
    sandbox = service.acquire(service.runtime, "--writable-root", "16M")
    paths = ["/etc/new", "/new", "/usr/local/new", "/usr/bin/new"]
    write = "import sys\nfor path in sys.argv[1:]: open(path, 'w').write('mine')"
    done = service.cordon("exec", "--user", "root", sandbox, "--", "python3", "-c", write, *paths)
    assert done.status == 0, done
    again = service.cordon("exec", sandbox, "--", "cat", *paths)
    assert again.out == b"mine" * len(paths), again
    for other in [service.cordon("run", "--", "ls", *paths),
                  service.cordon("run", "--writable-root", "16M", "--", "ls", *paths)]:
        assert other.status == 2 and other.out == b"", other
    assert not any(os.path.exists(path) for path in paths), "nothing reaches the host"
    service.release(sandbox)


def test_a_directory_of_the_lower_layer_can_be_made_anew(service):
    program = """
import json, os, shutil
path = "/usr/share/base-files"
before = os.listdir(path)
shutil.rmtree(path)
gone = not os.path.exists(path)
os.mkdir(path)
open(path + "/one", "w").close()
print(json.dumps([before != [], gone, os.listdir(path)]))
"""
    assert python(service, program) == [True, True, ["one"]]


def test_its_size_is_a_limit_and_counts_as_memory(service, api):
    program = """
import errno, json, os
written = 0
try:
    with open("/etc/large", "wb", buffering=0) as out:
        while True: written += out.write(bytes(1 << 20))
except OSError as error:
    print(json.dumps([errno.errorcode[error.errno], written]))
"""
    error, written = python(service, program)
    assert error == "ENOSPC"
    assert 8 << 20 < written <= 16 << 20
    with pytest.raises(Refused) as refused:
        api.run(["true"], sandbox=api.spec(limits={"memory_bytes": 32 << 20, "root_bytes": 64 << 20}))
    assert refused.value.reason == "SCRATCH_EXCEEDS_MEMORY"


def test_without_the_flag_the_root_is_read_only(service):
    done = service.cordon("run", "--user", "root", "--", "touch", "/etc/x")
    assert done.status == 1 and b"Read-only" in done.err, done


def mounts_inside(service, *flags):
    done = service.cordon("run", *flags, "--", "cat", "/proc/self/mountinfo")
    mounts = {}
    for line in done.out.decode().splitlines():
        fields, rest = line.split(" - ")
        where = fields.split()[4]
        assert where not in mounts, "one on top of another"
        mounts[where] = (rest.split()[0], set(fields.split()[5].split(",")), rest)
    return mounts


def test_its_mounts(service):
    mounts = mounts_inside(service, "--writable-root", "16M")
    for where in ["/", "/usr"]:
        kind, flags, rest = mounts[where]
        assert kind == "overlay", mounts
        assert {"rw", "nosuid", "nodev"} <= flags, (where, flags)
        assert "redirect_dir=on" not in rest and "metacopy=on" not in rest
    # Neither what the root was made from nor the upper layers have a name inside.
    plain = mounts_inside(service)
    assert {where for where in mounts if where not in plain} <= closed_of_usr()


def test_devices_and_setuid_programs_gain_nothing(service):
    program = """
import errno, json, os, shutil, stat
answers = []
try: os.mknod("/etc/disk", 0o600 | stat.S_IFBLK, os.makedev(8, 0)); answers.append("made")
except OSError as error: answers.append(errno.errorcode[error.errno])
shutil.copy("/usr/bin/id", "/usr/bin/own-id")
os.chmod("/usr/bin/own-id", 0o4755)
print(json.dumps(answers))
"""
    sandbox = service.acquire(service.runtime, "--writable-root", "16M")
    done = service.cordon("exec", "--user", "root", sandbox, "--", "python3", "-c", program)
    assert json.loads(done.out)[0] == "EPERM", done
    # Set, and without effect: nosuid and no_new_privs.
    done = service.cordon("exec", sandbox, "--", "/usr/bin/own-id", "-u")
    assert done.out == b"1000\n", done
    service.release(sandbox)


def closed_of_usr():
    """What others can't read of the host's /usr, as paths; not looked into."""
    found = set()
    for directory, directories, files in os.walk("/usr"):
        for name in [*directories, *files]:
            path = os.path.join(directory, name)
            mode = os.lstat(path).st_mode
            is_directory = name in directories and not os.path.islink(path)
            needed = 0o005 if is_directory else 0o004
            if not os.path.islink(path) and mode & needed != needed:
                found.add(path)
                if is_directory:
                    directories.remove(name)
    return found


@pytest.fixture
def secrets_in_usr():
    """What the host's root keeps from others, beneath /usr."""
    base = pathlib.Path(f"/usr/local/cordon-test-{os.getpid()}")
    base.mkdir(mode=0o755)
    try:
        (base / "file").write_text("the host's secret")
        (base / "file").chmod(0o640)
        (base / "directory").mkdir(mode=0o700)
        (base / "directory/within").write_text("the host's secret")
        yield base
    finally:
        subprocess.run(["rm", "-r", str(base)], check=True)


def test_what_the_host_keeps_from_others_is_not_shown(secrets_in_usr, runtime):
    # An instance of its own: what is closed is looked at once.
    with Instance(runtime=runtime) as instance:
        for flags in [["--writable-root", "16M"], []]:
            for path in ["file", "directory/within"]:
                done = instance.cordon("run", "--user", "root", *flags, "--", "cat",
                                       str(secrets_in_usr / path))
                assert b"secret" not in done.out, (flags, path)
        # Root inside owns the rest.
        done = instance.cordon("run", "--user", "root", "--writable-root", "16M", "--", "stat",
                               "-c", "%u", "/usr/bin/env", "/etc/passwd", "/usr")
        assert done.out.split() == [b"0", b"0", b"0"], done
        done = instance.cordon("run", "--writable-root", "16M", "--user", "root", "--", "sh", "-c",
                               f"rm -r {secrets_in_usr}/file; cat {secrets_in_usr}/file")
        assert b"secret" not in done.out
    assert (secrets_in_usr / "file").read_text() == "the host's secret"


# ---------------------------------------------------------------- owners of an image's files

PEEK = r"""
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>
int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    struct stat status;
    if (stat(argv[i], &status) != 0) { puts("none"); continue; }
    int fd = open(argv[i], O_WRONLY | O_APPEND);
    printf("%u:%u:%s\n", status.st_uid, status.st_gid, fd < 0 ? "no" : "yes");
    if (fd >= 0 && write(fd, "x", 1) != 1) return 1;
  }
  return 0;
}
"""


@pytest.fixture
def owned(image, tmp_path):
    """An image with files of several owners."""
    root = image("owned")
    (tmp_path / "peek.c").write_text(PEEK)
    subprocess.run(["gcc", "-static", "-O1", "-o", root / "bin/peek", tmp_path / "peek.c"],
                   check=True)
    for name, uid, gid, mode in [("roots", 0, 0, 0o644), ("users", 1000, 1000, 0o644),
                                 ("daemons", 1, 33, 0o600), ("high", 70000, 70000, 0o644)]:
        path = root / "etc" / name
        path.write_text(name)
        os.chown(path, uid, gid)
        path.chmod(mode)
    root.chmod(0o700)  # others' files: only where nobody else gets in
    return root


FILES = ["/etc/roots", "/etc/users", "/etc/daemons", "/etc/high"]


def peek(api, user, **limits):
    ended = api.run(["/bin/peek", *FILES], user=user,
                    sandbox=api.spec(image="owned", limits=limits))
    assert ended.result.exit_code == 0, ended.result
    return ended.out.decode().split()


def test_an_images_files_show_their_owners(api, owned):
    assert peek(api, "0") == ["0:0:no", "1000:1000:no", "1:33:no", "65534:65534:no"]


def test_who_may_write_what_on_a_writable_root(api, owned):
    # Root inside has no capability: it writes what is its own.
    assert peek(api, "0", **WRITABLE) == ["0:0:yes", "1000:1000:no", "1:33:no", "65534:65534:no"]
    assert peek(api, "1000", **WRITABLE) == ["0:0:no", "1000:1000:yes", "1:33:no",
                                             "65534:65534:no"]
    assert (owned / "etc/roots").read_text() == "roots", "the image stays as it was"


def test_runc_has_no_writable_root(shared_runc):
    done = shared_runc.cordon("run", "--writable-root", "16M", "--json", "--", "true")
    assert done.status == 125
    assert b"UNSUPPORTED" in done.out + done.err, done
    wait_until(lambda: not shared_runc.traces(), "nothing is left")
