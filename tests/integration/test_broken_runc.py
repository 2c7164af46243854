"""A runc that is missing, fails or hangs."""
import pathlib
import shutil
import tempfile

import pytest

import support
from support import Api, refused, v1, wait_until


@pytest.fixture
def script(tmp_path):
    """A program of root's that stands in for runc."""
    def make(text):
        directory = pathlib.Path(tempfile.mkdtemp(prefix="cordon-runc-"))
        path = directory / "runc"
        path.write_text("#!/bin/sh\n" + text)
        path.chmod(0o755)
        made.append(directory)
        return path

    made = []
    yield make
    for directory in made:
        shutil.rmtree(directory)


VERSION = 'if [ "$1" = --version ]; then echo "runc version 1.1.5"; exit 0; fi\n'


def test_runc_that_is_missing():
    with support.Instance("--runc", "/nonexistent/runc", runtime="runc") as instance:
        with Api(instance.address) as client:
            error = refused(client.run, ["true"])
            assert error.reason == "RUNTIME_UNAVAILABLE", error
            assert error.code in ("UNAVAILABLE", "FAILED_PRECONDITION")
            listing = client.call("Runtimes", v1.RuntimesRequest())
            card = [r for r in listing.runtimes if r.name == "runc"][0]
            assert not card.available and card.reason and card.fix, card
        assert not instance.traces()


def test_runc_that_fails(script):
    with support.Instance("--runc", script(VERSION + "echo secret-stderr >&2; exit 1\n"),
                          runtime="runc") as instance:
        with Api(instance.address) as client:
            error = refused(client.run, ["true"])
            assert error.reason in ("RUNTIME_FAILED", "RUNTIME_UNAVAILABLE"), error
            assert "secret-stderr" not in error.detail, "a runtime's text never crosses"
        wait_until(lambda: not instance.traces(), "nothing is left")


def test_runc_that_succeeds_and_starts_nothing(script):
    with support.Instance("--runc", script(VERSION + "exit 0\n"), runtime="runc") as instance:
        with Api(instance.address) as client:
            error = refused(client.run, ["true"])
            assert error.reason in ("RUNTIME_FAILED", "AGENT_UNRESPONSIVE"), error
        wait_until(lambda: not instance.traces(), "nothing is left")


def test_runc_that_hangs(script):
    marker = "3600.353"
    runc = script(VERSION + f"sleep {marker} & sleep {marker}\n")
    with support.Instance("--runc", runc, runtime="runc") as instance:
        with Api(instance.address) as client:
            error = refused(client.run, ["true"], timeout=120)
            assert error.reason == "RUNTIME_TIMEOUT", error
            assert error.code == "UNAVAILABLE"
        wait_until(lambda: not instance.traces(), "nothing is left")
        wait_until(lambda: not support.processes_with(f"sleep\0{marker}"), "the runtime's processes")
