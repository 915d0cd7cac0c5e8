"""Paths of the test cluster: sources next to this file, binaries in the user's cache, data on tmpfs if available."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
VERSION = "v1.34.4"
"""Kubernetes version; go/kubernetes/go.mod must agree."""


class ClusterError(Exception):
    """A control plane could not be built, started or controlled; the message is user-facing."""


def cache() -> Path:
    """The directory of built binaries: $TRAINOP_TESTENV, else below $XDG_CACHE_HOME or ~/.cache."""
    if chosen := os.environ.get("TRAINOP_TESTENV"):
        return Path(chosen)
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "trainop-testenv" / VERSION


def binary(name: str) -> Path:
    """The path of a built program. Raises `ClusterError` if it has not been built."""
    path = cache() / "bin" / name
    if not path.exists():
        raise ClusterError(f"{name} is not built: run `python -m e2e.cluster build {name}`")
    return path


def default_data(name: str) -> Path:
    """The data directory of the control plane `name`."""
    shm = Path("/dev/shm")
    base = shm if os.access(shm, os.W_OK) else Path(tempfile.gettempdir())
    return base / f"trainop-testenv-{os.getuid()}" / name
