"""What a careless root does to an image directory while sandboxes are made of it.

Never does anything of it show inside that the walk of the image would refuse:
the create is refused, or the sandbox is a good one.
"""
import contextlib
import os
import pathlib
import shutil
import socket
import subprocess
import threading
import time

import pytest

import support
from support import Refused, wait_until

SECRET = "what only the host may know"

# What is at / (a letter per entry, as find's %y), and each secret that it finds.
LOOK = r"""
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
static void look(const char* path, int depth) {
  DIR* directory = opendir(path);
  if (!directory) return;
  for (struct dirent* entry; (entry = readdir(directory));) {
    char name[512];
    struct stat status;
    if (entry->d_name[0] == '.') continue;
    snprintf(name, sizeof name, "%s/%s", depth ? path : "", entry->d_name);
    if (!strcmp(name, "/proc") || !strcmp(name, "/sys") || !strcmp(name, "/dev")) continue;
    if (lstat(name, &status)) continue;
    printf("%c %s\n", "?pc?d?b?f?l?s?"[(status.st_mode & S_IFMT) >> 12], name);
    if (S_ISDIR(status.st_mode) && depth < 3) look(name, depth + 1);
    if (strcmp(entry->d_name, "secret")) continue;
    char text[64] = "";
    int fd = open(name, O_RDONLY);
    if (fd >= 0) printf("SECRET %zd\n", read(fd, text, sizeof text));
  }
  closedir(directory);
}
int main(void) { look("/", 0); puts("looked"); return 0; }
"""

# Exchanges two names without an end.
SWAP = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
int main(int argc, char** argv) {
  if (argc != 3) return 1;
  for (;;) if (renameat2(AT_FDCWD, argv[1], AT_FDCWD, argv[2], RENAME_EXCHANGE)) return 1;
}
"""


def compiled(directory, name, source):
    subprocess.run(["cc", "-static", "-O1", "-x", "c", "-", "-o", directory / name],
                   input=source.encode(), check=True, timeout=60)
    return directory / name


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Images, programs and an instance that offers the images."""
    base = tmp_path_factory.mktemp("careless")
    for parent in [base, *base.parents]:
        if str(parent).startswith("/tmp/"):
            parent.chmod(0o755)
    (base / "images").mkdir(mode=0o755)
    secrets = base / "host"
    secrets.mkdir(mode=0o755)
    (secrets / "secret").write_text(SECRET)
    compiled(base, "look", LOOK)
    compiled(base, "swap", SWAP)
    with support.Instance("--images", base / "images") as instance:
        instance.base = base
        yield instance


@pytest.fixture
def image(place):
    """A directory with a program and two entries to play with."""
    path = place.base / "images/toy"
    path.mkdir(mode=0o755)
    shutil.copy(place.base / "look", path / "look")
    (path / "look").chmod(0o755)
    for name in ["toy-a", "toy-b"]:
        (path / name).mkdir(mode=0o755)
        (path / name / "inner").mkdir(mode=0o755)
    (path / "toy-file").write_text("plain")
    (path / "toy-file").chmod(0o644)
    yield path
    shutil.rmtree(path)


@contextlib.contextmanager
def swapping(place, one, other):
    """Two names are exchanged meanwhile."""
    process = subprocess.Popen([place.base / "swap", one, other])
    try:
        yield
        assert process.poll() is None, "the swapping went on"
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def mounting(source, target):
    """A directory is bound over another and taken off, again and again."""
    end = threading.Event()

    def loop():
        while not end.is_set():
            subprocess.run(["mount", "--bind", source, target], check=False, timeout=30)
            subprocess.run(["umount", "--lazy", target], check=False, timeout=30)

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()
        while subprocess.run(["umount", "--lazy", target], capture_output=True, check=False,
                             timeout=30).returncode == 0:
            pass


def create_meanwhile(place, seconds=0.7):
    """Sandboxes made while something goes on: good ones, or refused."""
    made = 0
    end = time.monotonic() + seconds
    with support.Api(place.address) as api:
        while time.monotonic() < end or made < 20:
            made += 1
            try:
                ended = api.run(["/look"], sandbox=api.spec(image="toy"))
            except Refused as why:
                assert why.reason in ("IMAGE_REFUSED", "UNKNOWN_IMAGE"), why
                continue
            text = ended.out.decode()
            assert ended.result.exit_code == 0 and text.endswith("looked\n"), (ended.result, text)
            assert "SECRET" not in text, text
            kinds = {line.split()[0] for line in text.splitlines() if " " in line}
            assert kinds <= {"d", "f", "l"}, text
    wait_until(lambda: not place.traces(), f"no trace: {place.traces()}")


def evil(place, kind):
    """Beside the image, to be exchanged with something in it."""
    path = place.base / "evil"
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    if kind == "link-to-the-host":
        path.symlink_to(place.base / "host")
    elif kind == "link-upwards":
        path.symlink_to("../../host")
    elif kind == "fifo":
        os.mkfifo(path, 0o666)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
    elif kind == "device":
        os.mknod(path, 0o666 | 0o020000, os.makedev(1, 3))
    elif kind == "directory-with-a-socket":
        path.mkdir()
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path / "socket"))
    elif kind == "directory-with-a-fifo":
        (path / "inner").mkdir(parents=True)
        os.mkfifo(path / "inner" / "fifo", 0o666)
    elif kind == "hard-link-to-the-host":
        os.link(place.base / "host/secret", path)
        path.chmod(0o600)
    return path


@pytest.mark.parametrize("kind,victim", [
    ("link-to-the-host", "toy-a"), ("link-upwards", "toy-a/inner"), ("fifo", "toy-file"),
    ("socket", "toy-file"), ("device", "toy-file"), ("directory-with-a-socket", "toy-a"),
    ("directory-with-a-fifo", "toy-a"), ("hard-link-to-the-host", "toy-file")])
def test_an_entry_is_swapped_while_sandboxes_are_made(place, image, kind, victim):
    other = evil(place, kind)
    with swapping(place, image / victim, other):
        create_meanwhile(place)
    assert "toy" not in support.read_text("/proc/self/mountinfo")
    evil(place, "nothing")


def test_the_whole_image_is_swapped(place, image):
    other = place.base / "images/other"
    other.symlink_to(place.base / "host")
    try:
        with swapping(place, image, other):
            create_meanwhile(place)
    finally:
        for path in [image, other]:
            if path.is_symlink():
                path.unlink()
            else:
                kept = path
        if kept != image:
            kept.rename(image)


@pytest.mark.parametrize("victim", ["toy-a", "toy-a/inner"])
def test_something_is_mounted_while_sandboxes_are_made(place, image, victim):
    with mounting(place.base / "host", image / victim):
        create_meanwhile(place)


def test_a_live_sandbox_sees_no_later_mount(place, image):
    """And what is mounted in one is seen by nobody."""
    tmp = place.base / "images"
    subprocess.run(["mount", "--bind", tmp, tmp], check=True, timeout=30)
    try:
        subprocess.run(["mount", "--make-shared", tmp], check=True, timeout=30)
        with support.Api(place.address) as api:
            live = api.acquire(image="toy")
            mounted = support.read_text("/proc/self/mountinfo")
            subprocess.run(["mount", "--bind", place.base / "host", image / "toy-a"], check=True,
                           timeout=30)
            try:
                for ended in [api.exec(live.id, ["/look"]),
                              api.run(["/look"], sandbox=api.spec(image="toy"))]:
                    text = ended.out.decode()
                    assert "looked" in text and "SECRET" not in text, text
            finally:
                subprocess.run(["umount", image / "toy-a"], check=True, timeout=30)
            assert support.read_text("/proc/self/mountinfo") == mounted
            assert api.release(live.id).receipt.complete
    finally:
        subprocess.run(["umount", "--lazy", tmp], check=True, timeout=30)
