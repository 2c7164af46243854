"""The fixtures of tests/integration, on a host of its own."""
import importlib.util
import os
import pathlib
import sys

import pytest

INTEGRATION = pathlib.Path(__file__).resolve().parents[1] / "integration"
sys.path.insert(0, str(INTEGRATION))

_spec = importlib.util.spec_from_file_location("integration_conftest", INTEGRATION / "conftest.py")
_integration = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_integration)

# For every runtime that is a sandbox; CORDON_RUNTIMES names fewer.
image_directory = _integration.image_directory
shared_jail = _integration.shared_jail
shared_runc = _integration.shared_runc
shared_host = _integration.shared_host
runtime = _integration.runtime
service = _integration.service
host = _integration.host
api = _integration.api


def pytest_configure(config):
    import support
    if os.geteuid() != 0 or not support.is_cgroup_v2():
        pytest.exit("tests/lab is for a host of its own with cgroup v2: tests/lab/lab.py", 3)
