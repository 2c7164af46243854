"""Images: what the host-usr view shows, and which directories are refused."""
import json
import os
import socket

import pytest

from support import Refused

SHOW = """
import json, os
print(json.dumps({path: sorted(os.listdir(path)) for path in %r if os.path.isdir(path)}))
"""


def listing(instance, *paths, flags=()):
    done = instance.cordon("run", "--json", *flags, "--", "python3", "-c", SHOW % (list(paths),))
    assert done.status == 0, done
    return json.loads(done.json["stdout"]["text"])


# ---------------------------------------------------------------- host-usr


def test_host_usr_has_an_allow_list_of_etc(service):
    inside = listing(service, "/", "/etc", "/run", "/var")
    allowed = {"passwd", "group", "hosts", "nsswitch.conf", "ld.so.cache", "ld.so.conf",
               "ld.so.conf.d", "ssl", "ca-certificates", "ca-certificates.conf", "alternatives",
               "os-release"}
    assert {"passwd", "group", "hosts", "nsswitch.conf"} <= set(inside["/etc"])
    assert set(inside["/etc"]) <= allowed
    assert not {"home", "root", "srv", "mnt", "media", "opt", "boot"} & set(inside["/"])
    # Those that programs expect are there, with nothing of the host in them.
    assert inside.get("/run", []) == []
    assert inside.get("/var", []) in ([], ["tmp"])
    assert service.cordon("run", "--", "ls", "-A", "/var/tmp").out == b""


def test_host_usr_has_no_shadow(service):
    done = service.cordon("run", "--user", "root", "--", "cat", "/etc/shadow")
    assert done.status == 1
    assert b"No such file" in done.err


def test_host_usr_is_read_only_and_work_and_tmp_are_not(service):
    for path in ["/usr/x", "/etc/x", "/x", "/bin/x", "/.cordon/x", "/dev/x"]:
        done = service.cordon("run", "--user", "root", "--", "touch", path)
        assert done.status == 1, path
    for path in ["/work/x", "/tmp/x", "/dev/shm/x"]:
        assert service.cordon("run", "--", "touch", path).status == 0, path


def test_mounts_inside_are_nosuid_and_nodev(service):
    done = service.cordon("run", "--", "cat", "/proc/self/mountinfo")
    lines = done.out.decode().splitlines()
    assert lines
    # The basic devices are bound one by one, and a terminal is a device of its
    # own devpts, where nobody can make another kind; everything else has nodev.
    devices = {"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty",
               "/dev/pts"}
    for line in lines:
        fields = line.split()
        point, options = fields[4], fields[5].split(",")
        if point.startswith(("/proc/", "/sys/")) and (
                fields[3] == "/null" or (fields[-3] == "tmpfs" and "ro" in options)):
            continue  # a masked path: /dev/null or an empty tmpfs over it
        assert "nosuid" in options or point in devices, line
        assert "nodev" in options or point in devices, line
        if point not in {"/work", "/tmp", "/dev/shm", "/proc", "/dev", "/dev/mqueue"} | devices:
            assert "ro" in options, line


def test_the_scratch_directories_are_as_large_as_asked(service):
    program = ("import os\n"
               "for p in ['/work', '/tmp', '/dev/shm']:\n"
               "    s = os.statvfs(p); print(s.f_blocks * s.f_frsize)")
    done = service.cordon("run", "--memory", "256M", "--disk", "24M", "--", "python3", "-c", program)
    sizes = [int(n) for n in done.out.split()]
    assert sizes[0] == 24 << 20
    assert all(0 < s <= 256 << 20 for s in sizes)
    assert sum(sizes) < 256 << 20


def test_python_and_bash_work_with_their_modules(service):
    done = service.cordon("run", "--", "bash", "-c",
                       "set -o pipefail; python3 -c 'import ssl, sqlite3, json, ctypes; print(1)' | cat")
    assert (done.status, done.out) == (0, b"1\n"), done


def test_only_the_sandboxs_own_processes_are_seen(service):
    done = service.cordon("run", "--", "python3", "-c",
                       "import os; print(sum(n.isdigit() for n in os.listdir('/proc')))")
    assert int(done.out) <= 4


def test_only_loopback_is_there(service):
    done = service.cordon("run", "--", "cat", "/proc/net/dev")
    names = [line.split(":")[0].strip() for line in done.out.decode().splitlines()[2:]]
    assert names == ["lo"]


# ---------------------------------------------------------------- directories


def run_image(api, name):
    return api.run(["/bin/hello"], sandbox=api.spec(image=name))


def refusal(api, name):
    with pytest.raises(Refused) as refused:
        run_image(api, name)
    return refused.value


def test_a_directory_beneath_the_configured_one_is_an_image(api, image):
    image("plain")
    ended = run_image(api, "plain")
    assert (ended.result.exit_code, ended.out) == (0, b"from the image\n")
    assert run_image(api, "plain").result.exit_code == 0  # the remembered answer


def test_an_image_is_read_only(api, image):
    root = image("readonly")
    ended = api.run(["/bin/hello"], sandbox=api.spec(image="readonly"))
    assert ended.result.exit_code == 0
    assert sorted(p.name for p in root.iterdir()) == ["bin", "dev", "etc", "proc", "sys", "tmp", "work"]


def with_socket(root):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(root / "etc/socket"))
    listener.close()


def with_symlinked(name):
    def change(root):
        (root / name).rmdir()
        (root / name).symlink_to("tmp")
    return change


REFUSED = {
    "socket": with_socket,
    "fifo": lambda root: os.mkfifo(root / "etc/fifo"),
    "device": lambda root: os.mknod(root / "etc/null", 0o666 | 0o020000, os.makedev(1, 3)),
    "block-device": lambda root: os.mknod(root / "etc/disk", 0o600 | 0o060000, os.makedev(7, 0)),
    "symlinked-dev": with_symlinked("dev"),
    "symlinked-proc": with_symlinked("proc"),
    "symlinked-sys": with_symlinked("sys"),
    "not-roots": lambda root: os.chown(root, 1000, 1000),
    "world-writable": lambda root: root.chmod(0o777),
    "group-writable": lambda root: root.chmod(0o775),
}


@pytest.mark.parametrize("flaw", REFUSED)
def test_an_unsafe_image_is_refused(api, image, flaw):
    REFUSED[flaw](image(f"bad-{flaw}"))
    error = refusal(api, f"bad-{flaw}")
    assert error.reason == "IMAGE_REFUSED", error
    assert error.code in ("FAILED_PRECONDITION", "INVALID_ARGUMENT")


def test_an_image_that_became_unsafe_is_refused(api, image):
    root = image("changed")
    assert run_image(api, "changed").result.exit_code == 0
    root.chmod(0o777)
    assert refusal(api, "changed").reason == "IMAGE_REFUSED"


@pytest.mark.parametrize("name", ["../images", "..", ".", "/etc", "plain/../../etc", "a/b", "a\0b",
                                  "/", " ", "x" * 300])
def test_a_name_that_is_not_a_plain_one_is_refused(api, name):
    error = refusal(api, name)
    assert error.reason in ("UNKNOWN_IMAGE", "BAD_NAME", "IMAGE_REFUSED"), error
    assert error.code in ("INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION")


def test_an_unknown_image(api):
    error = refusal(api, "there-is-none")
    assert error.reason == "UNKNOWN_IMAGE"


def test_a_symbolic_link_is_not_an_image(api, image, image_directory):
    image("target")
    (image_directory / "link").symlink_to("target")
    try:
        assert refusal(api, "link").reason in ("UNKNOWN_IMAGE", "IMAGE_REFUSED")
    finally:
        (image_directory / "link").unlink()


def test_a_link_inside_to_outside_leads_nowhere(api, image):
    root = image("links")
    (root / "etc/shadow").symlink_to("/etc/shadow")
    (root / "bin/up").symlink_to("../../../../../../bin/sh")
    ended = api.run(["/bin/up", "-c", "true"], sandbox=api.spec(image="links"))
    assert ended.result.WhichOneof("status") == "not_started", ended.result
