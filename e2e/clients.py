"""Programs of others that are tested as they are: an environment of their own, and an API server for one run."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from e2e.cluster.controlplane import ControlPlane


def environment(name: str, version: str, *installs: Sequence[str]) -> Path:
    """The interpreter of an environment, which is created if missing: in the folder that the variable TRAINOP_`NAME`
    gives, or ~/.cache/trainop-`name`. `installs` are the arguments of pip, one run each."""
    given = os.environ.get(f"TRAINOP_{name.upper().replace('-', '_')}")
    folder = Path(given or Path.home() / ".cache" / f"trainop-{name}") / version
    done, python = folder / ".done", folder / "bin" / "python"
    if not done.exists():
        print(f"installing {name} {version} ...", flush=True)
        venv.create(folder, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        for arguments in installs:
            subprocess.run([*pip, *arguments], check=True)
        done.touch()
    return python


def on_an_api_server(name: str, work: Callable[[ControlPlane, Path], int]) -> int:
    """The exit code of `work`, which gets a real kube-apiserver and an empty folder; 3 if there is no such server."""

    from e2e.cluster.controlplane import ControlPlane  # noqa: PLC0415  # a client, whose environment lacks it, imports this module
    from e2e.cluster.places import ClusterError, default_data  # noqa: PLC0415  # the same

    plane = ControlPlane(default_data(f"{name}-{os.getpid()}"), die_with_parent=True)
    try:
        with tempfile.TemporaryDirectory() as folder:
            plane.up()
            return work(plane, Path(folder))
    except ClusterError as error:
        print(error, file=sys.stderr)
        return 3
    finally:
        plane.down()
