"""No room for the service's state: said so, and over when there is room again."""
import subprocess
import tempfile

import pytest

from support import Api, Instance, Refused


@pytest.fixture
def small_disk():
    """A directory on a file system of 256 KiB."""
    with tempfile.TemporaryDirectory(prefix="cordon-test-full-") as directory:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k,mode=0711", "none", directory],
                       check=True)
        try:
            yield directory
        finally:
            subprocess.run(["umount", directory], check=True)


def fill(path):
    with open(path, "wb", buffering=0) as filler:
        try:
            while True:
                filler.write(bytes(4096))
        except OSError:
            pass


@pytest.mark.parametrize("runtime", ["runc", "host"])
def test_a_full_state_directory_is_named(small_disk, tmp_path, runtime):
    instance = Instance("--agents-mode", "0666",
                        *(["--allow-host-runtime"] if runtime == "host" else []),
                        state=small_disk)
    instance.log = tmp_path / "log"
    with instance, Api(instance.address) as client:
        before = instance.fingerprint()
        filler = instance.state / "filler"
        fill(filler)
        for call in (lambda: client.acquire(runtime), lambda: client.run(["true"], runtime)):
            with pytest.raises(Refused) as caught:
                call()
            assert (caught.value.code, caught.value.reason) == ("RESOURCE_EXHAUSTED", "STATE_FULL")
        filler.unlink()
        assert instance.fingerprint() == before
        assert client.run(["true"], runtime).result.exit_code == 0
