"""Fixtures: instances that tests share, and the leak check around every test."""
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import support  # noqa: E402
from snapshotting import Keeper  # noqa: E402


def pytest_configure(config):
    config.addinivalue_line("markers", "host: needs neither root, runc nor cgroups")


def pytest_collection_modifyitems(config, items):
    """Without root only the host runtime's tests can run; say so, loudly."""
    if os.geteuid() == 0:
        return
    for item in items:
        if item.get_closest_marker("host") is None:
            item.add_marker(pytest.mark.skip(reason="needs root, runc and cgroups"))


def pytest_sessionstart(session):
    if not support.CORDON.exists():
        pytest.exit(f"{support.CORDON} is not there: run scripts/build", returncode=3)


@pytest.fixture(scope="session")
def image_directory(tmp_path_factory):
    """What `--images` names: filled by test_images.py."""
    path = tmp_path_factory.mktemp("images")
    # Every parent must let the sandboxes' uids through.
    for parent in [path, *path.parents]:
        if str(parent).startswith("/tmp/"):
            parent.chmod(0o755)
    yield path


def shared(runtime, image_directory):
    instance = support.Instance("--agents-mode", "0666", "--images", image_directory,
                                runtime=runtime)
    try:
        yield instance.start()
    finally:
        instance.dispose()


@pytest.fixture(scope="session")
def shared_jail(image_directory):
    yield from shared("jail", image_directory)


@pytest.fixture(scope="session")
def shared_runc(image_directory):
    yield from shared("runc", image_directory)


@pytest.fixture(scope="session")
def shared_host():
    instance = support.Instance("--allow-host-runtime")
    try:
        yield instance.start()
    finally:
        instance.dispose()


def check_leaks(instance, before):
    """Waits until the instance is as it was; names what is not."""
    last = {}

    def same():
        last["now"] = instance.fingerprint()
        return last["now"] == before

    try:
        support.wait_until(same, "nothing left")
    except AssertionError:
        difference = {key: (before[key], last["now"][key]) for key in before
                      if before[key] != last["now"][key]}
        raise AssertionError(f"left behind (before, after): {difference}\n{instance.tail()}") from None


def fingerprint_at_rest(instance):
    """Starts the instance anew when the test before left something (and failed for it)."""
    if instance.traces():
        instance.restart()
    before = instance.fingerprint()
    assert not before["traces"], before
    return before


def leak_checked(instance):
    before = fingerprint_at_rest(instance)
    yield instance
    check_leaks(instance, before)


# Those that are sandboxes; each with a shared instance whose default it is.
# CORDON_RUNTIMES names fewer.
SANDBOXES = os.environ.get("CORDON_RUNTIMES", "jail runc").split()


@pytest.fixture(params=SANDBOXES)
def runtime(request):
    """For tests with an instance of their own."""
    return request.param


@pytest.fixture
def service(request, runtime):
    """The shared instance of each runtime that is a sandbox, leak-checked."""
    yield from leak_checked(request.getfixturevalue(f"shared_{runtime}"))


@pytest.fixture
def keeper(service, runtime):
    """Makes snapshots and sandboxes of them; what is left of it goes at the end."""
    made = Keeper(service, runtime)
    yield made
    made.clear()


@pytest.fixture
def host(shared_host):
    """The shared instance with the host runtime, leak-checked."""
    yield from leak_checked(shared_host)


@pytest.fixture(params=[pytest.param("host", marks=pytest.mark.host), *SANDBOXES])
def on(request):
    """(instance, runtime) for tests that hold on every runtime."""
    yield from ((instance, request.param) for instance in
                leak_checked(request.getfixturevalue(f"shared_{request.param}")))


@pytest.fixture
def api(service):
    with support.Api(service.address) as client:
        yield client


@pytest.fixture
def host_api(host):
    with support.Api(host.address) as client:
        yield client


# ---------------------------------------------------------------- images


@pytest.fixture(scope="session")
def static_program(tmp_path_factory):
    """A program that needs nothing of its image."""
    directory = tmp_path_factory.mktemp("static")
    source = directory / "hello.c"
    source.write_text('#include <stdio.h>\nint main(void) { puts("from the image"); return 0; }\n')
    subprocess.run(["gcc", "-static", "-O1", "-o", directory / "hello", source], check=True)
    return directory / "hello"


@pytest.fixture
def image(image_directory, static_program):
    """Makes images by name: a root-owned tree with one static program."""
    made = []

    def make(name):
        root = image_directory / name
        for each in ["bin", "dev", "proc", "sys", "tmp", "work", "etc"]:
            (root / each).mkdir(parents=True)
        shutil.copy(static_program, root / "bin/hello")
        for path in [root, *root.rglob("*")]:
            path.chmod(0o755)
        made.append(root)
        return root

    yield make
    for root in made:
        shutil.rmtree(root)
