"""The unit tests of what differs on cgroup v2, where there is one with controllers."""
import os
import subprocess
import xml.etree.ElementTree as ElementTree

import pytest

import support

PROGRAMS = ["broker/broker_cgroups_v2_test", "broker/broker_hardening_test",
            "runtimes/runtimes_runc_test", "runtimes/runtimes_runc_agent_test"]


@pytest.mark.parametrize("program", PROGRAMS)
def test_unit(program, tmp_path):
    report = tmp_path / "report.xml"
    done = subprocess.run([support.TOP / "build" / program], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=300, cwd=tmp_path,
                          env={**os.environ, "GTEST_OUTPUT": f"xml:{report}"})
    text, status = done.stdout.decode(errors="replace"), done.returncode
    assert status == 0, text[-6000:]
    cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    assert cases and not [c for c in cases if c.find("skipped") is not None], text
