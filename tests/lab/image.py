"""The lab's image: a Debian 12 root on ext4, and a kernel and initramfs a series."""
import hashlib
import os
import pathlib
import shutil
import subprocess
import time

TOP = pathlib.Path(__file__).resolve().parents[2]
HERE = TOP / "tests/lab"
LAB = TOP / "build/lab"

# Two meanings of pids.events: 6.11 changed it. Each is the newest of its series
# among the archive's cloud kernels.
KERNELS = ("6.1", "6.12")

# What the initramfs loads to reach the disks.
BOOT_MODULES = ("virtio_pci", "virtio_blk", "ext4")


class Failure(Exception):
    """What the lab could not do, as the reader should see it."""


def say(text):
    print(f"lab: {text}", flush=True)


def run(*command, **options):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, **options)
    if done.returncode != 0:
        raise Failure(f"{' '.join(map(str, command))}: status {done.returncode}\n"
                      f"{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done.stdout


def packages(group):
    return run(TOP / "scripts/packages", group).split()


def archive():
    """The archive that this machine uses: main, security and backports of it."""
    lines = run("apt-get", "indextargets", "--format", "$(REPO_URI) $(CODENAME)",
                "Created-By: Packages").split("\n")
    found = dict(reversed(line.split()) for line in lines if line.count(" ") == 1)
    if "bookworm" not in found:
        raise Failure("this machine's apt has no bookworm; run apt-get update")
    sources = [f"deb {found['bookworm']} bookworm main",
               f"deb {found['bookworm']} bookworm-backports main"]
    if "bookworm-security" in found:
        sources.append(f"deb {found['bookworm-security']} bookworm-security main")
    return sources


def image_directory():
    """Named by everything that it is made of but the archive's state."""
    digest = hashlib.sha256(" ".join(packages("lab-image")).encode())
    for path in [HERE / "image.py", *sorted((HERE / "image").iterdir())]:
        digest.update(path.read_bytes())
    return LAB / f"image-{digest.hexdigest()[:12]}"


def make_image():
    """The image's directory; made when it isn't there."""
    directory = image_directory()
    if directory.is_dir():
        return directory
    began = time.monotonic()
    say(f"making {directory.relative_to(TOP)}")
    for old in LAB.glob("image-*"):
        shutil.rmtree(old)
    making = LAB / f"image-{os.getpid()}.tmp"
    making.mkdir(parents=True)
    try:
        root = making / "root"
        run("mmdebstrap", "--variant=minbase", "--mode=root", "--format=directory",
            f"--include={','.join(packages('lab-image'))}",
            "--aptopt=APT::Install-Recommends \"false\"",
            "--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-exclude=/usr/share/man/*",
            "--dpkgopt=path-exclude=/usr/share/locale/*",
            f"--customize-hook={HERE}/image/customize \"$1\" {' '.join(KERNELS)}",
            "bookworm", root, *archive(), timeout=1200)
        for kernel in KERNELS:
            take_kernel(root, kernel, making)
        run("mke2fs", "-q", "-t", "ext4", "-L", "lab", "-m", "0", "-d", root,
            making / "root.ext4", "2560M")
        shutil.rmtree(root)
        making.rename(directory)
    finally:
        shutil.rmtree(making, ignore_errors=True)
    say(f"image made in {time.monotonic() - began:.0f} s")
    return directory


def take_kernel(root, kernel, directory):
    """vmlinuz-KERNEL and initrd-KERNEL out of the root."""
    release, = [p.name for p in (root / "usr/lib/modules").iterdir()
                if p.name.startswith(kernel + ".")]
    shutil.move(root / "boot" / f"vmlinuz-{release}", directory / f"vmlinuz-{kernel}")
    tree = directory / f"initrd-{kernel}.tree"
    (tree / "bin").mkdir(parents=True)
    shutil.copy("/bin/busybox", tree / "bin/busybox")
    shutil.copy(HERE / "image/init", tree / "init")
    (tree / "init").chmod(0o755)
    modules = root / "usr/lib/modules" / release
    order = load_order(modules, BOOT_MODULES)
    for number, module in enumerate(order):
        shutil.copy(modules / module, tree / f"{number:02}-{pathlib.Path(module).name}")
    names = "\n".join(str(p.relative_to(tree)) for p in [*tree.rglob("*")])
    with open(directory / f"initrd-{kernel}", "wb") as out:
        subprocess.run(["/bin/busybox", "cpio", "-o", "-H", "newc"], cwd=tree, check=True,
                       input=names.encode() + b"\n", stdout=out, stderr=subprocess.DEVNULL)
    shutil.rmtree(tree)


def load_order(modules, wanted):
    """The files of these modules and of what they need, in the order to load them."""
    needs = {}
    for line in (modules / "modules.dep").read_text().splitlines():
        path, _, others = line.partition(":")
        # The kernel takes - and _ for the same.
        needs[pathlib.Path(path).name.split(".")[0].replace("-", "_")] = (path, others.split())
    built_in = (modules / "modules.builtin").read_text().replace("-", "_")
    order = []
    for name in wanted:
        if name not in needs and f"/{name}.ko" in built_in:
            continue
        path, others = needs[name]
        order += [p for p in [*reversed(others), path] if p not in order]
    return order
