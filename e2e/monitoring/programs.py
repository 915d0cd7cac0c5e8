"""Finds `prometheus` and `promtool`, or unpacks Debian's package into the cache without installing its service."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from e2e.cluster.places import cache

PACKAGE = "prometheus"
PROGRAMS = ("prometheus", "promtool")


class MonitoringError(Exception):
    """Prometheus is not available; the message is one line for the user."""


def find(name: str) -> Path:
    """The path of a program, on the PATH or in the cache. Raises `MonitoringError`."""
    cached = _folder() / "usr" / "bin" / name
    if cached.exists():
        return cached
    if installed := shutil.which(name):
        return Path(installed)
    raise MonitoringError(f"{name} is missing: run `python -m e2e.monitoring` on Debian, else install Prometheus")


def obtain() -> list[Path]:
    """Unpacks the package unless the programs are there, and returns their paths. Raises `MonitoringError`."""
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / "monitoring.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            return [find(name) for name in PROGRAMS]
        except MonitoringError:
            _unpack()
    return [find(name) for name in PROGRAMS]


def _folder() -> Path:
    return cache() / "monitoring"


def _unpack() -> None:
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        raise MonitoringError("prometheus and promtool are neither installed nor obtainable: this is no Debian system")
    with tempfile.TemporaryDirectory(dir=cache()) as scratch:
        if not _download(scratch) and os.geteuid() == 0:
            subprocess.run(["apt-get", "update", "-qq"], capture_output=True, check=False)  # the lists may be missing
            _download(scratch)
        packages = list(Path(scratch).glob("*.deb"))
        if not packages:
            raise MonitoringError(f"the Debian package {PACKAGE} cannot be downloaded: run `apt-get update` as root")
        subprocess.run(["dpkg", "-x", packages[0], Path(scratch) / "tree"], check=True)
        shutil.rmtree(_folder(), ignore_errors=True)
        (Path(scratch) / "tree").rename(_folder())


def _download(folder: str) -> bool:
    done = subprocess.run(["apt-get", "download", "-qq", PACKAGE], cwd=folder, capture_output=True, check=False)
    return done.returncode == 0
