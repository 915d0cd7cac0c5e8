"""Nothing needs root: the tests of pods again, as an ordinary user."""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

USER = "tester"
ROOT = Path(__file__).parents[3]
FILES = ("test_network.py", "test_orphans.py")
CHOSEN = "isolated and (same_port or mount_points or read_only) or namespaces and agent_that_is_killed"


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """As the user, in the project's directory."""
    line = shlex.join(command)
    whole = ["su", USER, "-s", "/bin/sh", "-c", line]
    return subprocess.run(whole, cwd=ROOT, check=False, capture_output=True, text=True)


def find_interpreter() -> str | None:
    """A Python of this version that the user may run; ours may lie in root's home."""
    version = tuple(sys.version_info[:2])
    for candidate in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        if run(candidate, "-c", "import sys; print(sys.version_info[:2])").stdout.strip() == str(version):
            return candidate
    return None


def test_as_an_ordinary_user() -> None:
    if os.geteuid() != 0:
        pytest.skip("every test here already runs as an ordinary user")
    try:
        user = pwd.getpwnam(USER)
    except KeyError:
        pytest.skip(f"there is no user {USER!r} on this machine")
    python = find_interpreter()
    if python is None:
        pytest.skip(f"user {USER!r} can run no Python {sys.version_info.major}.{sys.version_info.minor}")
    home = Path(tempfile.mkdtemp(prefix="trainop-user-"))
    os.chown(home, user.pw_uid, user.pw_gid)
    paths = os.pathsep.join([str(ROOT), *(path for path in sys.path if "site-packages" in path)])
    environment = (f"HOME={home}", f"PYTHONPATH={paths}", "PYTHONDONTWRITEBYTECODE=1")
    options = ("-q", "-rs", "-p", "no:cacheprovider", f"--basetemp={home}/tests", "-k", CHOSEN)
    files = [str(Path(__file__).with_name(name)) for name in FILES]
    try:
        done = run("env", *environment, python, "-m", "pytest", *options, *files)
    finally:
        shutil.rmtree(home)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    assert " skipped" not in done.stdout, done.stdout
