"""Where things are kept: sources beside this file, binaries in the user's cache, data on tmpfs where there is one."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
VERSION = "v1.34.4"
"""Of Kubernetes; go/kubernetes/go.mod agrees."""


class ClusterError(Exception):
    """A control plane cannot be built, started or told to do something; the message is for people."""


def cache() -> Path:
    """The folder that keeps what was built: $TRAINOP_TESTENV, else below $XDG_CACHE_HOME or ~/.cache."""
    if chosen := os.environ.get("TRAINOP_TESTENV"):
        return Path(chosen)
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "trainop-testenv" / VERSION


def binary(name: str) -> Path:
    """The path of a program that was built; raises ClusterError if it was not."""
    path = cache() / "bin" / name
    if not path.exists():
        raise ClusterError(f"{name} is not built: run `python -m e2e.cluster build {name}`")
    return path


def default_data(name: str) -> Path:
    """The data folder of the control plane called `name`."""
    shm = Path("/dev/shm")
    base = shm if os.access(shm, os.W_OK) else Path(tempfile.gettempdir())
    return base / f"trainop-testenv-{os.getuid()}" / name
