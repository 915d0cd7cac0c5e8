"""Paths of the test cluster: sources next to this file, binaries in the user's cache, data on tmpfs if available."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from e2e.cluster import ClusterError
from e2e.cluster.releases import PROGRAMS, find_release

__all__ = ["HERE", "ClusterError", "binary", "cache", "default_data", "program_folder"]
HERE = Path(__file__).resolve().parent


def cache() -> Path:
    """The directory of what is built once: $TRAINOP_TESTENV, else below $XDG_CACHE_HOME or ~/.cache."""
    if chosen := os.environ.get("TRAINOP_TESTENV"):
        return Path(chosen)
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "trainop-testenv"


def program_folder(name: str, release: str = "") -> Path:
    """Where a program is built: those of Kubernetes in a folder of their release, the others in a common one.

    Raises `ClusterError` for an unknown release; without a name it is that of `find_release`.
    """
    chosen = find_release(release)
    return cache() / (chosen.version if name in PROGRAMS else "") / "bin"


def binary(name: str, release: str = "") -> Path:
    """The path of a built program. Raises `ClusterError` if it has not been built."""
    path = program_folder(name, release) / name
    if not path.exists():
        chosen = f"--release {find_release(release).name} " if name in PROGRAMS else ""
        raise ClusterError(f"{name} is not built: run `python -m e2e.cluster build {chosen}{name}`")
    return path


def default_data(name: str) -> Path:
    """The data directory of the control plane `name`."""
    shm = Path("/dev/shm")
    base = shm if os.access(shm, os.W_OK) else Path(tempfile.gettempdir())
    return base / f"trainop-testenv-{os.getuid()}" / name
