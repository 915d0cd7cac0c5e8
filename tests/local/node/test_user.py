"""Nothing needs root: the tests of pods again, as an ordinary user."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.needs import lack

USER = 12345
"""No account has to have this number: containers run as such users too."""
ROOT = Path(__file__).parents[3]
FILES = ("test_network.py", "test_orphans.py")
CHOSEN = "isolated and (same_port or mount_points or read_only) or namespaces and agent_that_is_killed"
SIGHT = """
set -e
mount -t tmpfs none /mnt
mkdir /mnt/python /mnt/packages /mnt/checkout /mnt/home
mount --bind "$1" /mnt/python
mount --bind "$2" /mnt/packages
mount --bind "$3" /mnt/checkout
chown "$4:$4" /mnt/home
cd /mnt/checkout
user=$4
shift 4
exec setpriv --reuid="$user" --regid="$user" --clear-groups -- "$@"
"""
"""Python, its packages and the checkout where any user may enter, in a mount namespace: they may lie in root's home."""


def as_user(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a command as an ordinary user, in the project's directory; `/mnt/home` is the user's."""
    places = [sys.base_prefix, sysconfig.get_path("purelib"), str(ROOT), str(USER)]
    return subprocess.run(
        ["unshare", "--mount", "sh", "-c", SIGHT, "sh", *places, *command],
        env={
            "HOME": "/mnt/home",
            "LD_LIBRARY_PATH": "/mnt/python/lib",
            "PATH": os.environ["PATH"],
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": "/mnt/checkout:/mnt/packages",
            "TMPDIR": "/mnt/home",
        },
        check=False,
        capture_output=True,
        text=True,
    )


def test_as_an_ordinary_user() -> None:
    if os.geteuid() != 0:
        pytest.skip("every test here already runs as an ordinary user")
    if wrong := as_user("true").stderr:
        lack(f"root has to be allowed to mount, to become an ordinary user: {wrong.strip()}")
    python = f"/mnt/python/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    options = ("-q", "-rs", "-p", "no:cacheprovider", "--basetemp=/mnt/home/tests", "-k", CHOSEN)
    done = as_user(python, "-m", "pytest", *options, *(f"tests/local/node/{name}" for name in FILES))
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    assert " skipped" not in done.stdout, done.stdout
