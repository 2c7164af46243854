"""The jailer of jailer/stops_testing.cc, which stops for good behind a step of
docs/jailer.md and says so in its name.
"""
import pathlib
import shutil
import tempfile

import support
from support import wait_until

STOPS = support.ROOT.parent / "jailer/cordon-jailer-stops"
STEPS = range(18)  # 0: before the first; from 5 on pid 1; 17: only the exec is missing

class Stops:
    """An instance whose jailer stops where it is told to."""

    def __init__(self):
        self.libexec = pathlib.Path(tempfile.mkdtemp(prefix="cordon-stops-"))
        self.libexec.chmod(0o755)
        for name in ["cordon-broker", "cordon-agents", "cordon-copier", "vm-agent"]:
            shutil.copy(support.LIBEXEC / name, self.libexec)
        shutil.copy(STOPS, self.libexec / "cordon-jailer")
        self.instance = support.Instance("--libexec", self.libexec)

    def __enter__(self):
        try:
            self.instance.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        try:
            self.instance.dispose()
        finally:
            shutil.rmtree(self.libexec)

    def stop_after(self, step):
        """None: nowhere."""
        path = self.libexec / "stop-after"
        path.unlink(missing_ok=True)
        if step is not None:
            path.write_text(str(step))

    def stopped(self, step):
        """The process that stands behind this step."""
        def find():
            return [pid for pid in support.descendants(self.instance.process.pid)
                    if support.read_text(f"/proc/{pid}/comm").strip() == f"at step {step}"]
        return wait_until(find, f"the jailer is behind step {step}\n{self.instance.tail()}")[0]

    def begin(self):
        return self.instance.popen("acquire", "--json")

    def expect_nothing_left(self):
        instance = self.instance
        wait_until(lambda: not instance.traces(), f"no trace: {instance.traces()}")
        wait_until(lambda: not [p for p in support.descendants(instance.process.pid)
                                if support.program_of(p) == "cordon-jailer"], "no jailer")

    def expect_a_good_one(self):
        self.stop_after(None)
        done = self.instance.cordon("run", "--", "echo", "well")
        assert (done.status, done.out) == (0, b"well\n"), (done, self.instance.tail())
        self.expect_nothing_left()
