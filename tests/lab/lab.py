#!/usr/bin/env python3
"""A whole Debian 12 host in QEMU, where cordon's real stack meets cgroup v2.

  tests/lab/lab.py                     every kernel, every runtime of it
  tests/lab/lab.py --kernel 6.12       one of: 6.1 6.12
  tests/lab/lab.py --runtime jail      one or more of: jail runc
  tests/lab/lab.py -- NODE…            these tests instead of the lab's list
  tests/lab/lab.py --image             only makes the image
  tests/lab/lab.py --list              only prints the kernels
  tests/lab/lab.py --script FILE       runs this there, to look around

The image (mmdebstrap, both kernels) is made once, in build/lab/image-HASH. A
run puts build/root, tests/ and ipc/ of this checkout on a second disk, boots
with systemd as init and cgroup v2 as systemd mounts it, runs pytest as root,
and takes the results from a third disk. Nothing is written to the image, there
is no network, and the machine this runs on keeps its own cgroups and mounts.

Results: build/test-results/lab-KERNEL.xml; logs: build/lab/run-KERNEL.
Needs root (mmdebstrap) and the packages of `scripts/packages lab`; no KVM.
"""
import argparse
import ctypes
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import xml.etree.ElementTree as ElementTree

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from image import HERE, KERNELS, LAB, TOP, Failure, make_image, run, say  # noqa: E402

ROOT = pathlib.Path(os.environ.get("CORDON_ROOT", TOP / "build/root"))
RESULTS = TOP / "build/test-results"
RUNTIMES = ("jail", "runc")

# For tests/lab/test_units.py: programs below build, and what they start.
UNITS = ("broker/broker_cgroups_v2_test", "broker/broker_hardening_test",
         "runtimes/runtimes_runc_test", "runtimes/runtimes_runc_agent_test",
         "runtimes/runc_inside", "vm_agent/vm-agent")

# Without KVM all is 10 to 20 times slower than here.
BOOTS_WITHIN = 180
ENDS_WITHIN = 1500


def selection():
    lines = (HERE / "selection.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def make_payload(directory, tests, runtimes, script):
    """The disk with what is tested. Returns its path."""
    tree = directory / "payload"
    if not (ROOT / "bin/cordon").exists():
        raise Failure(f"{ROOT} is not there: run scripts/build")
    ignore = shutil.ignore_patterns("__pycache__", "*.pyc")
    shutil.copytree(ROOT, tree / "build/root", symlinks=True)
    for name in ("tests/integration", "tests/lab", "ipc", "docs"):
        shutil.copytree(TOP / name, tree / name, ignore=ignore)
    for name in UNITS:
        (tree / "build" / name).parent.mkdir(exist_ok=True)
        shutil.copy(TOP / "build" / name, tree / "build" / name)
    (tree / "tests.txt").write_text("".join(f"{test}\n" for test in tests))
    if script:
        shutil.copyfile(script, tree / "script")
    (tree / "environment").write_text(f"CORDON_RUNTIMES='{' '.join(runtimes)}'\n"
                                      f"LAB_TOP={TOP}\n"
                                      f"LAB_SECONDS={ENDS_WITHIN * 4 // 5 - 60}\n")
    disk = directory / "payload.ext4"
    run("mke2fs", "-q", "-t", "ext4", "-m", "0", "-O", "^has_journal", "-d", tree, disk, "768M")
    shutil.rmtree(tree)
    return disk


def dies_with_parent():
    """In the child, before exec: no machine outlives this program."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def start_machine(image, kernel, directory, payload, results):
    append = ("root=/dev/vda console=ttyS0 panic=-1 systemd.unit=lab.target "
              "systemd.unified_cgroup_hierarchy=1 systemd.show_status=0 quiet mitigations=off")
    command = [
        "qemu-system-x86_64", "-M", "q35", "-accel", "tcg,thread=multi",
        # cmpxchg16b of QEMU 7.2 makes 6.12 fault at random.
        "-cpu", "max,-cx16", "-smp", "2", "-m", "3072", "-nodefaults", "-nic", "none",
        "-display", "none", "-no-reboot",
        "-serial", f"file:{directory}/console.log", "-serial", f"file:{directory}/tests.log",
        "-kernel", image / f"vmlinuz-{kernel}", "-initrd", image / f"initrd-{kernel}",
        "-append", append,
        # What the machine writes to its root is gone with it.
        "-drive", f"file={image}/root.ext4,format=raw,if=virtio,snapshot=on",
        "-drive", f"file={payload},format=raw,if=virtio,readonly=on",
        "-drive", f"file={results},format=raw,if=virtio"]
    return subprocess.Popen([str(c) for c in command], stdin=subprocess.DEVNULL,
                            stdout=open(directory / "qemu.log", "wb"), stderr=subprocess.STDOUT,
                            preexec_fn=dies_with_parent)


def tail(path, lines=30):
    try:
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return ""


def logs(directory):
    return "".join(f"--- {name}\n{tail(directory / name)}\n"
                   for name in ("qemu.log", "console.log", "tests.log"))


def watch(machine, directory, began):
    """Shows the tests' lines as they come, until the machine is off."""
    log = directory / "tests.log"
    shown = 0
    booted = False
    while True:
        ended = machine.poll() is not None
        text = log.read_bytes() if log.exists() else b""
        end = text.rfind(b"\n") + 1
        if end > shown:
            sys.stdout.write(text[shown:end].decode(errors="replace").replace("\r", ""))
            sys.stdout.flush()
            shown = end
            if not booted:
                booted = True
                say(f"up after {time.monotonic() - began:.0f} s")
        if ended:
            return
        seconds = time.monotonic() - began
        if not booted and seconds > BOOTS_WITHIN:
            raise Failure(f"not up within {BOOTS_WITHIN} s\n{logs(directory)}")
        if seconds > ENDS_WITHIN:
            raise Failure(f"not done within {ENDS_WITHIN} s\n{logs(directory)}")
        time.sleep(0.2)


def take_results(disk, directory):
    """The files that the machine wrote: one level of plain files, by name."""
    try:
        with tarfile.open(disk, "r:") as archived:
            for member in archived:
                name = pathlib.PurePosixPath(member.name).name
                if member.isfile() and name in ("junit.xml", "status", "journal.log"):
                    (directory / name).write_bytes(archived.extractfile(member).read())
    except (tarfile.TarError, OSError) as error:
        raise Failure(f"no results ({error})\n{logs(directory)}") from None


def run_kernel(image, kernel, tests, runtimes, script):
    """(passed, failed); the JUnit file lies where scripts/test looks for it."""
    directory = LAB / f"run-{kernel}"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    payload = make_payload(directory, tests, runtimes, script)
    results = directory / "results.tar"
    with open(results, "wb") as file:
        file.truncate(16 << 20)
    say(f"starting kernel {kernel}")
    began = time.monotonic()
    machine = start_machine(image, kernel, directory, payload, results)
    try:
        watch(machine, directory, began)
    finally:
        if machine.poll() is None:
            machine.kill()
        machine.wait()
        payload.unlink()
    if script:
        results.unlink()
        return 0, 0
    take_results(results, directory)
    results.unlink()
    status = tail(directory / "status").strip()
    passed, failed = count(directory / "junit.xml")
    if status != "0" and failed == 0:
        raise Failure(f"pytest ended with {status or 'nothing'}\n{logs(directory)}")
    RESULTS.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(directory / "junit.xml", RESULTS / f"lab-{kernel}.xml")
    say(f"kernel {kernel}: {passed} passed, {failed} failed in {time.monotonic() - began:.0f} s")
    return passed, failed


def count(path):
    try:
        cases = list(ElementTree.parse(path).getroot().iter("testcase"))
    except (OSError, ElementTree.ParseError) as error:
        raise Failure(f"no readable {path.name}: {error}\n{logs(path.parent)}") from None
    bad = [c for c in cases if c.find("failure") is not None or c.find("error") is not None]
    skipped = [c for c in cases if c.find("skipped") is not None]
    return len(cases) - len(bad) - len(skipped), len(bad)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", action="append", choices=KERNELS)
    parser.add_argument("--runtime", action="append", metavar="NAME")
    parser.add_argument("--image", action="store_true", help="only make the image")
    parser.add_argument("--list", action="store_true", help="only prints the kernels")
    parser.add_argument("--script", type=pathlib.Path, metavar="FILE")
    parser.add_argument("tests", nargs="*", metavar="NODE")
    options = parser.parse_args()
    if options.list:
        print("\n".join(KERNELS))
        return 0
    # An end by a signal goes through the finally clauses.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    passed = failed = 0
    try:
        image = make_image()
        if options.image:
            return 0
        for kernel in options.kernel or KERNELS:
            try:
                good, bad = run_kernel(image, kernel, options.tests or selection(),
                                       options.runtime or RUNTIMES, options.script)
                passed, failed = passed + good, failed + bad
            except Failure as failure:
                say(f"kernel {kernel}: {failure}")
                failed += 1
    except Failure as failure:
        say(str(failure))
        failed += 1
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
