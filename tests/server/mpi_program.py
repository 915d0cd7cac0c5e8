"""`trainop mpi-operator` on the ports that `Operator` chooses: its own flags leave no choice of the health port."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

from trainop.cli import run_operator
from trainop.programs.mpi_operator import MPI_FLAGS, read_mpi_settings
from trainop.programs.settings import Settings

COMMAND = (sys.executable, "-m", "tests.server.mpi_program")


def read(args: Sequence[str], environ: Mapping[str, str]) -> tuple[Settings, tuple[str, ...]]:
    given = dict(arg.split("=", 1) for arg in args[:3])  # those that `Operator` puts first
    settings, rest = read_mpi_settings(args[3:], environ)
    metrics, health = given["--metrics-bind-address"], given["--health-probe-bind-address"]
    return replace(settings, metrics_bind_address=metrics, health_probe_bind_address=health), rest


if __name__ == "__main__":
    sys.exit(run_operator(sys.argv[1:], "mpi-operator", MPI_FLAGS, read))
