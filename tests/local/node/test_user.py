"""Runs the pod tests again as an ordinary user, because nothing may require root."""

from __future__ import annotations

import os
import subprocess

import pytest

from e2e.as_user import command, environment
from tests.needs import lack

FILES = ("test_network.py", "test_orphans.py")
CHOSEN = "isolated and (same_port or mount_points or read_only) or namespaces and agent_that_is_killed"


def as_user(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments as an ordinary user."""
    return subprocess.run(command(*arguments), env=environment(), check=False, capture_output=True, text=True)


def test_as_an_ordinary_user() -> None:
    if os.geteuid() != 0:
        pytest.skip("every test here already runs as an ordinary user")
    try:
        probe = as_user("-c", "import os; print(os.getuid())")
    except FileNotFoundError as error:
        lack(str(error))
    if probe.returncode:
        lack(f"root has to be allowed to mount, to become an ordinary user: {probe.stderr.strip()}")
    assert int(probe.stdout) > 0
    options = ("-q", "-rs", "-p", "no:cacheprovider", "-k", CHOSEN)
    done = as_user("-m", "pytest", *options, *(f"tests/local/node/{name}" for name in FILES))
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    assert " skipped" not in done.stdout, done.stdout
